// Command observability makes each signal that a lock can give, on purpose, so that
// the dashboard and the alert rules beside it can be tried: locks that are waited
// for, refused, lost in every way there is, held by a ghost; tokens that are refused or
// never used; an etcd that cannot be reached, has no leader, is full, or denies.
//
// Its metrics stand on http://127.0.0.1:9464/metrics. It goes on until it is
// interrupted; with -once it makes each signal once, prints the page, and fails if one
// is not on it.
//
// What to copy is in telemetry.go. symptoms.go says how each signal comes about, all by
// real faults: nothing is fed to the hooks by hand.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9464", "address of the page; port 0 is any free one")
	once := flag.Bool("once", false, "make each signal once, print the page and end")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "observability: it takes flags only")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *listen, *once); err != nil {
		fmt.Fprintln(os.Stderr, "observability:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, listen string, once bool) (err error) {
	t, err := newTelemetry()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	s, err := newStage(ctx, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("page: %w; -listen sets another address", err)
	}
	s.url = "http://" + listener.Addr().String()
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		_ = server.Close()
		<-served
	}()
	if once {
		return all(ctx, out, s)
	}
	fmt.Fprintf(out, "metrics: %s/metrics\nsignals are made until this is interrupted\n", s.url)
	s.patience = 4 * time.Minute // longer than an alert's "for"
	var g errgroup.Group
	for _, made := range symptoms {
		g.Go(func() error {
			for ctx.Err() == nil {
				if err := made.make(ctx, s); err != nil && ctx.Err() == nil {
					fmt.Fprintf(os.Stderr, "observability: %s: %v\n", made.name, err)
				}
				pause(ctx, 5*time.Second)
			}
			return nil
		})
	}
	return g.Wait()
}

// all makes each signal once, all at the same time, and prints the page.
func all(ctx context.Context, out io.Writer, s *stage) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	g, making := errgroup.WithContext(ctx)
	for _, made := range symptoms {
		g.Go(func() error {
			if err := made.make(making, s); err != nil {
				return fmt.Errorf("%s: %w", made.name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	page, err := fetch(ctx, s.url+"/metrics")
	if err != nil {
		return err
	}
	if _, err := out.Write(page); err != nil {
		return err
	}
	return missing(s.registry)
}

// missing names the signals that are not on the page.
func missing(from gatherer) error {
	var errs []error
	for _, made := range symptoms {
		for _, series := range made.shows {
			switch v, err := series.value(from); {
			case err != nil:
				return err
			case v == 0:
				errs = append(errs, fmt.Errorf("%s: %s is not on the page", made.name, series))
			}
		}
	}
	return errors.Join(errs...)
}

// pause waits, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}
