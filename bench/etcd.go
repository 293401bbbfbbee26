package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdDirEnv makes a copy of this program the etcd server, with its data in
// that folder. An environment variable and not a flag, so that the test binary
// can be re-executed in the same way.
const etcdDirEnv = "FENCELOCK_BENCH_ETCD_DIR"

// etcdProcess is a single etcd server in a process of its own: in ours it
// would share the scheduler and the garbage collector with what is measured.
type etcdProcess struct {
	endpoint string

	cmd *exec.Cmd
	dir string
}

// startEtcd re-executes this program as an etcd server and returns when it
// serves. Its data is in a new temporary folder.
func startEtcd() (*etcdProcess, error) {
	dir, err := os.MkdirTemp("", "fencelock-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: folder for etcd's data: %w", err)
	}
	e := &etcdProcess{dir: dir}
	if err := e.start(); err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

func (e *etcdProcess) start() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: path of this program: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), etcdDirEnv+"="+e.dir)
	cmd.Stderr = os.Stderr
	// Never written to: it closes when this process ends, in whatever way, and
	// that is what ends the server.
	if _, err := cmd.StdinPipe(); err != nil {
		return fmt.Errorf("bench: pipe to etcd: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("bench: pipe from etcd: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("bench: start etcd: %w", err)
	}
	e.cmd = cmd
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("bench: etcd ended before it served: %w", err)
	}
	e.endpoint = strings.TrimSpace(line)
	return nil
}

// stop kills the server and removes its data. Nobody needs the data, so there
// is nothing to shut down in order.
func (e *etcdProcess) stop() error {
	if e.cmd != nil {
		if err := e.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("bench: kill etcd (pid %d): %w", e.cmd.Process.Pid, err)
		}
		_ = e.cmd.Wait() // "killed" is what it says
	}
	return os.RemoveAll(e.dir)
}

// serveEtcd is the server's process. It writes its client endpoint as one line
// to out, and serves until in is at its end.
func serveEtcd(dir string, in io.Reader, out io.Writer) error {
	// A Ctrl-C goes to every process of the terminal. The parent ends this one
	// when it has stopped measuring; an end before that would only add errors.
	signal.Ignore(os.Interrupt)

	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())

	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("bench: etcd: %w", err)
	}
	defer server.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("bench: etcd: %w", err)
	case <-ctx.Done():
		return errors.New("bench: etcd did not become ready in 10s")
	}
	if _, err := fmt.Fprintln(out, server.Clients[0].Addr()); err != nil {
		return fmt.Errorf("bench: tell etcd's address: %w", err)
	}
	_, err = io.Copy(io.Discard, in)
	return err
}
