//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fencelock/fencelock/etcdverify"
	"github.com/fencelock/fencelock/examples/internal/process"
	"github.com/fencelock/fencelock/httpfence"
	"github.com/fencelock/fencelock/sqlfence"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	_ "modernc.org/sqlite" // the database/sql driver "sqlite"

	"github.com/fencelock/fencelock"
)

const tables = `
	CREATE TABLE document (id TEXT PRIMARY KEY, text TEXT NOT NULL);
	CREATE TABLE written (
		id       INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which writes were applied
		document TEXT    NOT NULL,
		token    INTEGER NOT NULL                   -- what the fence admitted the write with
	);`

// documents is the service. It knows nothing about who holds a lock, and does not
// ask: it refuses tokens below the highest it has seen.
type documents struct {
	db    *sql.DB
	fence *sqlfence.Fence
}

// handler requires a token where something is changed, or is about to be.
func (d *documents) handler(verify func(context.Context, fencelock.Token) error) http.Handler {
	fenced := httpfence.Require(lockOf, httpfence.WithVerifier(verify))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /documents/{id}", d.get)
	mux.Handle("PUT /documents/{id}", fenced(http.HandlerFunc(d.put)))
	mux.Handle("POST /documents/{id}/claim", fenced(http.HandlerFunc(d.claim)))
	return mux
}

// lockOf is the service's own knowledge: a token says nothing about which lock it
// is of.
func lockOf(r *http.Request) (string, error) { return lockName(r.PathValue("id")), nil }

func lockName(id string) string { return "documents/" + id }

func (d *documents) get(w http.ResponseWriter, r *http.Request) {
	var text string
	err := d.db.QueryRowContext(r.Context(), `SELECT text FROM document WHERE id = ?`, r.PathValue("id")).Scan(&text)
	if err != nil && !errors.Is(err, sql.ErrNoRows) { // no such document yet: an empty one
		http.Error(w, "the document cannot be read", http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, text)
}

// claim raises the mark and does nothing else, for a writer that is going to read.
func (d *documents) claim(w http.ResponseWriter, r *http.Request) {
	token, _ := httpfence.TokenFrom(r.Context())
	answer(w, r, d.fence.Advance(r.Context(), token))
}

func (d *documents) put(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the document is too large, or broke off", http.StatusBadRequest)
		return
	}
	token, _ := httpfence.TokenFrom(r.Context())
	// The check and the write are one transaction: nobody can come between.
	answer(w, r, d.fence.Tx(r.Context(), token, func(tx *sql.Tx) error {
		id := r.PathValue("id")
		_, err := tx.ExecContext(r.Context(), `
			INSERT INTO document (id, text) VALUES (?, ?)
			ON CONFLICT (id) DO UPDATE SET text = excluded.text`, id, string(text))
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(r.Context(), `INSERT INTO written (document, token) VALUES (?, ?)`, id, token)
		return err
	}))
}

func answer(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case httpfence.Error(w, r, err):
		// Stale: it has been answered with 412.
	case err != nil:
		http.Error(w, "the document cannot be written", http.StatusInternalServerError)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// service is the role of the process that serves. Its arguments are etcd's address
// and the database's file.
func service(ctx context.Context, self *process.Self) (err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: self.Args[:1], Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	verifier, err := etcdverify.New(client)
	if err != nil {
		return err
	}
	db, err := openDocuments(self.Args[1])
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	fence, err := sqlfence.New(db, sqlfence.SQLite)
	if err != nil {
		return err
	}
	if err := fence.Migrate(ctx); err != nil {
		return err
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	d := &documents{db: db, fence: fence}
	server := &http.Server{Handler: d.handler(verifier.Verify), ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	self.Say(serving, nobody, "%s%s", address, listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func openDocuments(file string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)")
}

// ending is what was left behind, as the database has it.
type ending struct {
	text  string
	stale int // writes after one with a larger token
}

// audit looks into the database, without asking the service or the fence.
func audit(ctx context.Context, file string) (end ending, err error) {
	db, err := openDocuments(file)
	if err != nil {
		return end, err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, `
		SELECT
			(SELECT text FROM document WHERE id = ?),
			(SELECT count(*) FROM written AS late WHERE EXISTS
				(SELECT 1 FROM written AS earlier WHERE earlier.id < late.id AND earlier.token > late.token))`,
		document).Scan(&end.text, &end.stale)
	if err != nil {
		return end, fmt.Errorf("audit the documents: %w", err)
	}
	return end, nil
}
