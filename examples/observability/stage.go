package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/examples/internal/link"
	"github.com/fencelock/fencelock/examples/internal/localetcd"
	"github.com/fencelock/fencelock/httpfence"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// ttl is short, so that a loss does not take long to make.
const ttl = 3 * time.Second

// stage is what the signals are made with: an etcd in good order, and one for each
// way to be in none.
type stage struct {
	*telemetry
	url      string        // of the page
	patience time.Duration // how long what lasts is kept up

	dir        string
	servers    []*embed.Etcd
	clients    []*clientv3.Client
	client     *clientv3.Client // of the etcd in good order
	addr       string           // its address
	denied     *clientv3.Client // of a user who may do nothing
	worker     *clientv3.Client // of one who may, until root changes that
	root       *clientv3.Client
	full       *clientv3.Client // out of space
	leaderless *clientv3.Client // two members, of which one is gone
	nobody     *clientv3.Client // nothing listens there
}

func newStage(ctx context.Context, t *telemetry) (_ *stage, err error) {
	s := &stage{telemetry: t, patience: 500 * time.Millisecond}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "fencelock-observability-"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, build := range []func(context.Context) error{s.sound, s.guarded, s.outOfSpace, s.half, s.absent} {
		if err := build(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// start starts a server, and returns its address. It elects a leader, and says that it
// has none, sooner than etcd's default has it: between machines that would be too soon.
func (s *stage) start(ctx context.Context, name string, changes ...func(*embed.Config)) (*embed.Etcd, string, error) {
	fast := func(cfg *embed.Config) { cfg.TickMs, cfg.ElectionMs = 10, 100 }
	server, err := localetcd.Start(ctx, filepath.Join(s.dir, name), append(changes, fast)...)
	if err != nil {
		return nil, "", err
	}
	return server, server.Clients[0].Addr().String(), nil
}

func (s *stage) dial(addr, user string) (*clientv3.Client, error) {
	cfg := clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()}
	if user != "" {
		cfg.Username, cfg.Password = user, password
	}
	client, err := clientv3.New(cfg)
	if err == nil {
		s.clients = append(s.clients, client)
	}
	return client, err
}

func (s *stage) sound(ctx context.Context) (err error) {
	server, addr, err := s.start(ctx, "sound")
	if err != nil {
		return err
	}
	s.servers, s.addr = append(s.servers, server), addr
	s.client, err = s.dial(addr, "")
	return err
}

const (
	password = "for-this-demonstration-only"
	prefix   = "fencelock/"
)

// guarded is an etcd with authentication on.
func (s *stage) guarded(ctx context.Context) error {
	// The password protects nothing, and need not take long to check.
	server, addr, err := s.start(ctx, "guarded", func(cfg *embed.Config) { cfg.BcryptCost = 4 })
	if err != nil {
		return err
	}
	s.servers = append(s.servers, server)
	open, err := s.dial(addr, "")
	if err != nil {
		return err
	}
	for _, user := range []string{"root", "worker", "denied"} {
		if _, err := open.UserAdd(ctx, user, password); err != nil {
			return err
		}
		if _, err := open.RoleAdd(ctx, user); err != nil {
			return err
		}
		if _, err := open.UserGrantRole(ctx, user, user); err != nil {
			return err
		}
	}
	if _, err := open.AuthEnable(ctx); err != nil {
		return err
	}
	if s.root, err = s.dial(addr, "root"); err != nil {
		return err
	}
	if err := s.allowWorker(ctx); err != nil {
		return err
	}
	if s.worker, err = s.dial(addr, "worker"); err != nil {
		return err
	}
	s.denied, err = s.dial(addr, "denied")
	return err
}

// allowWorker gives worker the role that docs/operating.md describes.
func (s *stage) allowWorker(ctx context.Context) error {
	_, err := s.root.RoleGrantPermission(ctx, "worker", prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}

func (s *stage) forbidWorker(ctx context.Context) error {
	_, err := s.root.RoleRevokePermission(ctx, "worker", prefix, clientv3.GetPrefixRangeEnd(prefix))
	return err
}

// outOfSpace is an etcd that has used up what it may.
func (s *stage) outOfSpace(ctx context.Context) error {
	server, addr, err := s.start(ctx, "full", func(cfg *embed.Config) { cfg.QuotaBackendBytes = 1 << 20 })
	if err != nil {
		return err
	}
	s.servers = append(s.servers, server)
	if s.full, err = s.dial(addr, ""); err != nil {
		return err
	}
	for value := strings.Repeat("x", 64<<10); ; {
		if _, err := s.full.Put(ctx, "fill", value); err != nil {
			if ctx.Err() != nil {
				return err
			}
			return nil // full
		}
	}
}

// half is one of two members that have had a leader once.
func (s *stage) half(ctx context.Context) error {
	var peers [2]url.URL
	for i := range peers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		peers[i] = url.URL{Scheme: "http", Host: l.Addr().String()}
		if err := l.Close(); err != nil {
			return err
		}
	}
	var members [2]*embed.Etcd
	g, starting := errgroup.WithContext(ctx)
	for i := range members {
		g.Go(func() (err error) {
			members[i], _, err = s.start(starting, fmt.Sprintf("half-%d", i), func(cfg *embed.Config) {
				cfg.Name = fmt.Sprintf("half-%d", i)
				cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peers[i:i+1], peers[i:i+1]
				cfg.InitialCluster = fmt.Sprintf("half-0=%s,half-1=%s", &peers[0], &peers[1])
			})
			return err
		})
	}
	err := g.Wait()
	for _, m := range members {
		if m != nil {
			s.servers = append(s.servers, m)
		}
	}
	if err != nil {
		return err
	}
	s.leaderless, err = s.dial(members[0].Clients[0].Addr().String(), "")
	members[1].Close()
	s.servers = s.servers[:len(s.servers)-1]
	return err
}

// absent is an address at which there is nothing.
func (s *stage) absent(context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := l.Close(); err != nil {
		return err
	}
	s.nobody, err = s.dial(l.Addr().String(), "")
	return err
}

func (s *stage) close() error {
	var errs []error
	for _, c := range s.clients {
		errs = append(errs, c.Close())
	}
	for _, server := range s.servers {
		server.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// with calls fn with a Locker of its own, as a process of its own would have.
func (s *stage) with(client *clientv3.Client, fn func(*fencelock.Locker) error, opts ...fencelock.Option) error {
	opts = append([]fencelock.Option{fencelock.WithHooks(s.hooks), fencelock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	l, err := fencelock.New(client, opts...)
	if err != nil {
		return err
	}
	err = fn(l)
	// What the faults leave behind is cleaned up by leases that lapse, so an
	// unconfirmed end is no failure here.
	if cerr := l.Close(); !errors.Is(cerr, fencelock.ErrUnconfirmed) {
		err = errors.Join(err, cerr)
	}
	return err
}

// linked is with on a way to etcd that can be cut.
func (s *stage) linked(fn func(*fencelock.Locker, *link.Link) error, opts ...fencelock.Option) error {
	way, err := link.New(s.addr)
	if err != nil {
		return err
	}
	defer way.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{way.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	return s.with(client, func(l *fencelock.Locker) error { return fn(l, way) }, append(opts, fencelock.WithTTL(ttl))...)
}

// handler serves the page, and beside it a resource that requires a token.
func (s *stage) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.page())
	order := func(r *http.Request) (string, error) { return "orders/" + r.PathValue("id"), nil }
	mux.Handle("PUT /orders/{id}", httpfence.Require(order, httpfence.WithHooks(s.fence))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	return mux
}

// await waits until a series has a value.
func (s *stage) await(ctx context.Context, what series, want float64) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := what.value(s.registry)
		if err != nil || got == want {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is %v, not %v: %w", what, got, want, context.Cause(ctx))
		}
	}
}
