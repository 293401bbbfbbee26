package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
)

// connection is how etcd is reached. The flags are etcdctl's, with its defaults, so
// that an environment made for etcdctl serves.
type connection struct {
	endpoints, cacert, cert, key string
	user, password, jwt          string
	skipVerify, insecure         bool
	dialTimeout, commandTimeout  time.Duration
	keepAlive, keepAliveTimeout  time.Duration
	prefix                       string
}

func (c *connection) register(fs *flag.FlagSet) {
	fs.StringVar(&c.endpoints, "endpoints", "127.0.0.1:2379", "the members' addresses, separated by commas: `host:port,...`")
	fs.StringVar(&c.cacert, "cacert", "", "verify the members' certificates with the authorities in this `file`")
	fs.StringVar(&c.cert, "cert", "", "present the certificate in this `file`; needs --key")
	fs.StringVar(&c.key, "key", "", "the key of --cert: a `file`")
	fs.StringVar(&c.user, "user", "", "who to be where etcd has authentication on: `name[:password]`")
	fs.StringVar(&c.password, "password", "", "the user's `password`; others can see it in a command line, unlike ETCDCTL_PASSWORD")
	fs.StringVar(&c.jwt, "auth-jwt-token", "", "a JWT `token` instead of user and password")
	fs.BoolVar(&c.skipVerify, "insecure-skip-tls-verify", false, "with TLS, do not verify the members' certificates")
	fs.BoolVar(&c.insecure, "insecure-transport", true, "speak without TLS where no other flag asks for it and no endpoint is https://")
	fs.DurationVar(&c.dialTimeout, "dial-timeout", 2*time.Second, "how long connecting may take: a `duration` such as 2s")
	fs.DurationVar(&c.commandTimeout, "command-timeout", 5*time.Second, "how long etcd may take to answer; a wait for a lock is not bounded by it: a `duration`")
	fs.DurationVar(&c.keepAlive, "keepalive-time", 2*time.Second, "how often an idle connection is probed: a `duration`")
	fs.DurationVar(&c.keepAliveTimeout, "keepalive-timeout", 6*time.Second, "how long a probe may take: a `duration`")
	fs.StringVar(&c.prefix, "prefix", "fencelock/", "what the keys of all locks begin with, as WithPrefix has it: a `prefix`")
}

// fromEnvironment sets what the command line did not, and checks what there is.
func (c *connection) fromEnvironment(fs *flag.FlagSet) error {
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	known := newFlagSet()
	(&connection{}).register(known)
	var failed error
	known.VisitAll(func(f *flag.Flag) {
		variable := "ETCDCTL_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if f.Name == "prefix" {
			variable = "FENCELOCK_PREFIX"
		}
		value, ok := os.LookupEnv(variable)
		if !ok || value == "" || given[f.Name] || failed != nil {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			failed = usage("%s=%q: %v", variable, value, err)
		}
	})
	// Without it the locks of another cluster would be looked at in silence.
	if srv := os.Getenv("ETCDCTL_DISCOVERY_SRV"); failed == nil && srv != "" && !given["endpoints"] && os.Getenv("ETCDCTL_ENDPOINTS") == "" {
		failed = usage("ETCDCTL_DISCOVERY_SRV=%q is not supported: give --endpoints", srv)
	}
	if failed != nil {
		return failed
	}
	return c.check()
}

func (c *connection) check() error {
	for _, e := range strings.Split(c.endpoints, ",") {
		if strings.TrimSpace(e) == "" {
			return usage("--endpoints=%q has an empty address", c.endpoints)
		}
	}
	for name, d := range map[string]time.Duration{
		"dial-timeout": c.dialTimeout, "command-timeout": c.commandTimeout,
		"keepalive-time": c.keepAlive, "keepalive-timeout": c.keepAliveTimeout,
	} {
		if d <= 0 {
			return usage("--%s=%v must be above 0", name, d)
		}
	}
	if (c.cert == "") != (c.key == "") {
		return usage("--cert and --key belong together: one of them is missing")
	}
	if c.jwt != "" && c.user != "" {
		return usage("--auth-jwt-token and --user exclude each other")
	}
	if c.password == "" {
		c.user, c.password, _ = strings.Cut(c.user, ":")
	}
	switch {
	case c.user == "" && c.password != "":
		return usage("--password without --user")
	case c.user != "" && c.password == "":
		return usage("--user=%s without a password: give name:password, --password or ETCDCTL_PASSWORD; there is no prompt", c.user)
	}
	return nil
}

// tls returns what the flags ask for, nil for none.
func (c *connection) tls() (*tls.Config, error) {
	if c.cacert == "" && c.cert == "" && !c.skipVerify && c.insecure {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.skipVerify}
	if c.cacert != "" {
		pem, err := os.ReadFile(c.cacert)
		if err != nil {
			return nil, usage("--cacert: %v", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("--cacert=%q has no certificate in it", c.cacert)
		}
	}
	if c.cert != "" {
		if _, err := tls.LoadX509KeyPair(c.cert, c.key); err != nil {
			return nil, usage("--cert and --key: %v", err)
		}
		// Read again at each connection: a run can outlive its certificate.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.cert, c.key)
			return &pair, err
		}
	}
	return cfg, nil
}

func (c *connection) dial(ctx context.Context) (*clientv3.Client, error) {
	secure, err := c.tls()
	if err != nil {
		return nil, err
	}
	// What a client made so logs with discards everything: what matters is in the
	// errors. To make one by itself this module would have to require its package.
	logger := clientv3.NewCtxClient(ctx).GetLogger()
	if os.Getenv("ETCD_CLIENT_DEBUG") != "" {
		logger = nil // etcd's own, as that variable has it
	}
	var endpoints []string
	for _, e := range strings.Split(c.endpoints, ",") {
		endpoints = append(endpoints, strings.TrimSpace(e))
	}
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: endpoints, TLS: secure, Logger: logger,
		Username: c.user, Password: c.password, Token: c.jwt,
		DialTimeout: c.dialTimeout, DialKeepAliveTime: c.keepAlive, DialKeepAliveTimeout: c.keepAliveTimeout,
	})
	if err != nil {
		return nil, c.explain(err)
	}
	return client, nil
}

// open returns a Locker for a command that only looks or repairs, and what closes it.
func (c *connection) open(ctx context.Context) (*fencelock.Locker, *clientv3.Client, func(), error) {
	client, err := c.dial(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	locker, err := fencelock.New(client, fencelock.WithPrefix(c.prefix), fencelock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		_ = client.Close()
		return nil, nil, nil, err
	}
	return locker, client, func() {
		_ = locker.Close() // it has no lease
		_ = client.Close()
	}, nil
}

// explain adds to an error what a person at a command line can do about it.
func (c *connection) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fencelock.ErrUnconfirmed):
		return err
	case unreachable(err):
		return fmt.Errorf("no answer from etcd at %s; are --endpoints and the TLS flags right, and has the cluster a quorum? %w",
			c.endpoints, err)
	case isAny(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd has authentication on: give --user, or ETCDCTL_USER and ETCDCTL_PASSWORD: %w", err)
	case isAny(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd does not accept the user or the password: %w", err)
	}
	return err
}
