package main

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver "pgx"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the database/sql driver "sqlite"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/pgtest"
	"github.com/fencelock/fencelock/sqlfence"
)

// BenchmarkSQLFence is what the fence costs: a transaction with one UPDATE through
// sqlfence, and the same without it, in turns. It reports the median of each and
// their ratio.
//
// The databases write to disk without waiting for it, so that a transaction is as
// cheap as can be: where it waits for its commit the ratio is smaller.
//
// On one resource all transactions follow each other, with the fence and without
// it: they update one row.
func BenchmarkSQLFence(b *testing.B) {
	for _, database := range []struct {
		name    string
		dialect sqlfence.Dialect
		open    func(b *testing.B) *sql.DB
	}{
		{"postgres", sqlfence.PostgreSQL, openPostgres},
		{"sqlite", sqlfence.SQLite, openSQLite},
	} {
		b.Run(database.name, func(b *testing.B) {
			db := database.open(b)
			fence, err := sqlfence.New(db, database.dialect)
			require.NoError(b, err)
			require.NoError(b, fence.Migrate(b.Context()))
			_, err = db.ExecContext(b.Context(), `CREATE TABLE resource (id INTEGER PRIMARY KEY, value BIGINT NOT NULL)`)
			require.NoError(b, err)
			for id := range manyResources {
				_, err = db.ExecContext(b.Context(), `INSERT INTO resource VALUES ($1, 0)`, id)
				require.NoError(b, err)
			}
			for _, resources := range []int{1, manyResources} {
				for _, workers := range []int{1, 16} {
					b.Run(fmt.Sprintf("resources=%d/goroutines=%d", resources, workers), func(b *testing.B) {
						bare, fenced := updater(db, fence, resources)
						inTurns(b, workers, bare, fenced)
					})
				}
			}
		})
	}
}

const manyResources = 64

// updater returns the effect without and with the fence.
func updater(db *sql.DB, fence *sqlfence.Fence, resources int) (bare, fenced func(ctx context.Context, n int) error) {
	tokens := make([]fencelock.Token, resources)
	for id := range tokens {
		var err error
		if tokens[id], err = fencelock.ParseToken(fmt.Sprintf("resource/%d", id), "7.holder"); err != nil {
			panic(err)
		}
	}
	update := func(ctx context.Context, tx *sql.Tx, n int) error {
		_, err := tx.ExecContext(ctx, `UPDATE resource SET value = value + 1 WHERE id = $1`, n%resources)
		return err
	}
	bare = func(ctx context.Context, n int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := update(ctx, tx, n); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	}
	fenced = func(ctx context.Context, n int) error {
		return fence.Tx(ctx, tokens[n%resources], func(tx *sql.Tx) error { return update(ctx, tx, n) })
	}
	return bare, fenced
}

// inTurns measures two ways to do the same, a batch of each in turns, and reports
// the median of a batch's mean for each, and the median of their ratios.
func inTurns(b *testing.B, workers int, bare, fenced func(ctx context.Context, n int) error) {
	const batch = 16 // a multiple of the goroutines
	ctx := b.Context()
	// In the first turn connections are opened and statements prepared.
	timed(ctx, b, workers, batch, bare)
	timed(ctx, b, workers, batch, fenced)
	var ours, theirs, ratios []float64
	for b.Loop() {
		without := timed(ctx, b, workers, batch, bare)
		with := timed(ctx, b, workers, batch, fenced)
		theirs = append(theirs, without)
		ours = append(ours, with)
		ratios = append(ratios, with/without)
	}
	b.ReportMetric(median(theirs), "bare-µs")
	b.ReportMetric(median(ours), "fenced-µs")
	b.ReportMetric(median(ratios), "ratio")
	if workers == 1 {
		b.ReportMetric(testing.AllocsPerRun(batch, func() { _ = bare(ctx, 0) }), "bare-allocs")
		b.ReportMetric(testing.AllocsPerRun(batch, func() { _ = fenced(ctx, 0) }), "fenced-allocs")
	}
	b.ReportMetric(0, "ns/op") // of a turn of both: it says nothing
}

// timed does something n times from so many goroutines, and returns the time of
// one, in microseconds.
func timed(ctx context.Context, b *testing.B, workers, n int, do func(ctx context.Context, n int) error) float64 {
	b.Helper()
	errs := make([]error, workers)
	var running sync.WaitGroup
	start := time.Now()
	for w := range workers {
		running.Go(func() {
			for i := w; i < n && errs[w] == nil; i += workers {
				errs[w] = do(ctx, i)
			}
		})
	}
	running.Wait()
	took := time.Since(start)
	for _, err := range errs {
		require.NoError(b, err)
	}
	return float64(took.Microseconds()) / float64(n)
}

func openPostgres(b *testing.B) *sql.DB {
	db, err := sql.Open("pgx", pgtest.Start(b).URL())
	require.NoError(b, err)
	db.SetMaxIdleConns(16)
	b.Cleanup(func() { _ = db.Close() })
	return db
}

func openSQLite(b *testing.B) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "fence.db")+
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate")
	require.NoError(b, err)
	b.Cleanup(func() { _ = db.Close() })
	return db
}
