package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdDirEnv makes a copy of this program the etcd server, with its data in
// that folder. An environment variable and not a flag, so that the test binary
// can be re-executed in the same way.
const etcdDirEnv = "FENCELOCK_BENCH_ETCD_DIR"

// etcdPeersEnv are the addresses on which the members of its cluster talk to each
// other, with commas between them; etcdSelfEnv says which of them is the server's own.
const (
	etcdPeersEnv = "FENCELOCK_BENCH_ETCD_PEERS"
	etcdSelfEnv  = "FENCELOCK_BENCH_ETCD_SELF"
)

// etcdCluster is etcd servers, each in a process of its own: in ours they would
// share the scheduler and the garbage collector with what is measured.
type etcdCluster struct {
	endpoint string // of all members, with commas between them
	members  []*etcdProcess
	dir      string
}

type etcdProcess struct {
	cmd *exec.Cmd
	out io.Reader
}

// startEtcd re-executes this program as n etcd servers and returns when they
// serve. Their data is in a new folder within dir, or within the temporary folder.
func startEtcd(dir string, n int) (*etcdCluster, error) {
	dir, err := os.MkdirTemp(dir, "fencelock-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: folder for etcd's data: %w", err)
	}
	c := &etcdCluster{dir: dir}
	if err := c.start(n); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *etcdCluster) start(n int) error {
	peers, err := freeAddresses(n)
	if err != nil {
		return err
	}
	for i := range n {
		e := &etcdProcess{}
		c.members = append(c.members, e)
		if err := e.start(filepath.Join(c.dir, strconv.Itoa(i)), strings.Join(peers, ","), peers[i]); err != nil {
			return err
		}
	}
	var endpoints []string // none serves before most of them do
	for _, e := range c.members {
		line, err := bufio.NewReader(e.out).ReadString('\n')
		if err != nil {
			return fmt.Errorf("bench: etcd ended before it served: %w", err)
		}
		endpoints = append(endpoints, strings.TrimSpace(line))
	}
	c.endpoint = strings.Join(endpoints, ",")
	return nil
}

// freeAddresses returns addresses of loopback that nobody listens on. Members have
// to know each other's before the first of them listens.
func freeAddresses(n int) (addresses []string, err error) {
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("bench: address for etcd: %w", err)
		}
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}

func (e *etcdProcess) start(dir, peers, own string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: path of this program: %w", err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), etcdDirEnv+"="+dir, etcdPeersEnv+"="+peers, etcdSelfEnv+"="+own)
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
	e.cmd, e.out = cmd, out
	return nil
}

// stop kills the servers and removes their data. Nobody needs the data, so there
// is nothing to shut down in order.
func (c *etcdCluster) stop() error {
	for _, e := range c.members {
		if e.cmd == nil {
			continue
		}
		if err := e.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("bench: kill etcd (pid %d): %w", e.cmd.Process.Pid, err)
		}
		_ = e.cmd.Wait() // "killed" is what it says
	}
	return os.RemoveAll(c.dir)
}

// serveEtcd is the server's process. It writes its client endpoint as one line
// to out, and serves until in is at its end.
func serveEtcd(dir string, in io.Reader, out io.Writer) error {
	// A Ctrl-C goes to every process of the terminal. The parent ends this one
	// when it has stopped measuring; an end before that would only add errors.
	signal.Ignore(os.Interrupt)

	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	own := []url.URL{{Scheme: "http", Host: os.Getenv(etcdSelfEnv)}}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.Name = dir, own[0].Host
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = own, own
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	var cluster []string
	for peer := range strings.SplitSeq(os.Getenv(etcdPeersEnv), ",") {
		cluster = append(cluster, peer+"=http://"+peer)
	}
	cfg.InitialCluster = strings.Join(cluster, ",")
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
