package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

const tlsEtcdRoleName = "etcd-tls"

// startTLSEtcd starts one etcd server that talks to clients over TLS only, and
// only to those with a certificate of the authority, and returns where.
func startTLSEtcd(t *testing.T, trusted *authority) (addr string) {
	t.Helper()
	dir := t.TempDir()
	key, cert := trusted.issue(t, x509.ExtKeyUsageServerAuth)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"ca.pem":   {Type: "CERTIFICATE", Bytes: trusted.cert.Raw},
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: der},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	return harness.Start(t, tlsEtcdRoleName, dir).Expect("serving", eventually).Text
}

// tlsEtcdRole is that server, told where its files are. It takes free ports
// itself, as it is not started a second time.
func tlsEtcdRole(c *harness.Child) error {
	dir := c.Args()[0]
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "data")
	peer, client := url.URL{Scheme: "http", Host: "127.0.0.1:0"}, url.URL{Scheme: "https", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile:       filepath.Join(dir, "cert.pem"),
		KeyFile:        filepath.Join(dir, "key.pem"),
		TrustedCAFile:  filepath.Join(dir, "ca.pem"),
		ClientCertAuth: true,
	}
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = true
	cfg.LogLevel = "warn"
	cfg.LogOutputs = []string{"stderr"}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return fmt.Errorf("etcd ended by itself: %w", err)
	case <-c.Context().Done():
		return nil
	}
	c.Emit("serving", e.Clients[0].Addr())
	<-c.Context().Done()
	return nil
}

// authority issues certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := certificate(t)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{key, cert}
}

func certificate(t *testing.T) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "fencelock test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

// issue returns a new key and its certificate, for a server or client on this
// machine.
func (a *authority) issue(t *testing.T, use x509.ExtKeyUsage) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := certificate(t)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{use}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	return key, cert
}

// client returns the configuration of a client that trusts a server's authority,
// with a certificate of a's; a nil authority issues none.
func (a *authority) client(t *testing.T, server *authority) *tls.Config {
	t.Helper()
	cfg := &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AddCert(server.cert)
	if a != nil {
		key, cert := a.issue(t, x509.ExtKeyUsageClientAuth)
		cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}
	}
	return cfg
}
