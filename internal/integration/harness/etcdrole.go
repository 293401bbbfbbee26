package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
)

// etcdRole is the built-in role: one etcd server.
const etcdRole = "etcd"

// What an etcd child says, beside [replyEvent].
const (
	servingEvent = "serving" // its member id in hex; its ports are open
	replyEvent   = "reply"   // to one command: "ok" and a result, or "error" and a text
)

// memberConfig is what an etcd child is told, as JSON, in its one argument.
type memberConfig struct {
	Name           string
	Dir            string
	ClientAddr     string
	PeerAddr       string
	InitialCluster string
	ClusterToken   string
	Binary         string // see [UseBinary]
	Settings       ClusterConfig
}

func (m memberConfig) argument() string {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers marshal
	}
	return string(text)
}

func (m memberConfig) embed() *embed.Config {
	peers := []url.URL{{Scheme: "http", Host: m.PeerAddr}}
	clients := []url.URL{{Scheme: "http", Host: m.ClientAddr}}
	cfg := embed.NewConfig()
	cfg.Name = m.Name
	cfg.Dir = m.Dir
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peers, peers
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = clients, clients
	cfg.InitialCluster = m.InitialCluster
	cfg.InitialClusterToken = m.ClusterToken
	cfg.TickMs, cfg.ElectionMs = m.Settings.TickMs, m.Settings.ElectionMs
	cfg.QuotaBackendBytes = m.Settings.QuotaBackendBytes
	if m.Settings.AuthTokenTTL > 0 {
		cfg.AuthTokenTTL = m.Settings.AuthTokenTTL
	}
	// The least bcrypt takes. Under the race detector the default costs seconds
	// for each password, more than the client's DialTimeout.
	cfg.BcryptCost = 4
	// The parent holds the ports; see reservation.
	cfg.SocketOpts.ReusePort = true
	// What a killed process wrote is in the kernel's hands and survives it;
	// only a crash of the machine would need the fsync.
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "warn"
	cfg.LogOutputs = []string{"stderr"}
	return cfg
}

// serveEtcd runs one etcd server until the child is to end.
func serveEtcd(c *Child) error {
	var m memberConfig
	if len(c.Args()) != 1 {
		return fmt.Errorf("want one argument, got %d", len(c.Args()))
	}
	if err := json.Unmarshal([]byte(c.Args()[0]), &m); err != nil {
		return err
	}
	if m.Binary != "" {
		c.Emit(servingEvent, "0") // the last word of this process that is not etcd's
		return m.become()
	}
	e, err := embed.StartEtcd(m.embed())
	if err != nil {
		return err
	}
	defer e.Close()
	c.Emit(servingEvent, e.Server.MemberID())
	for {
		select {
		case <-c.Context().Done():
			return nil
		case err := <-e.Err():
			return fmt.Errorf("etcd ended by itself: %w", err)
		case <-e.Server.StopNotify():
			return errors.New("etcd ended by itself: its member was removed")
		case command, ok := <-c.Commands():
			if !ok {
				return nil
			}
			result, err := obey(e, command)
			if err != nil {
				c.Emit(replyEvent, "error", err)
				continue
			}
			c.Emit(replyEvent, "ok", result)
		}
	}
}

// obey carries out a command of [Member.ask]. These go through the process and
// not through etcd's client, because they have to work in a member that is cut
// off, and with authentication on.
func obey(e *embed.Etcd, command string) (string, error) {
	verb, arg, _ := strings.Cut(command, " ")
	if verb == "lead" {
		return fmt.Sprintf("%s %d", e.Server.Leader(), e.Server.Term()), nil
	}
	n, err := strconv.ParseUint(arg, 16, 64)
	if err != nil {
		return "", err
	}
	switch verb {
	case "cut":
		e.Server.CutPeer(types.ID(n))
	case "mend":
		e.Server.MendPeer(types.ID(n))
	case "move":
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return "", e.Server.MoveLeader(ctx, e.Server.Lead(), n)
	default:
		return "", fmt.Errorf("unknown command %q", command)
	}
	return "", nil
}
