package integration

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/integration/harness"
)

// cli is the command line program, for a cluster.
type cli struct {
	t      *testing.T
	binary string
	addr   string
}

// buildCLI builds the program that the tests of a test run.
func buildCLI(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "fencelock")
	build := exec.Command("go", "build", "-o", binary, "github.com/fencelock/fencelock/cmd/fencelock")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return binary
}

// cliRun is one call of the program.
type cliRun struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err *lockedBuffer
	exited   chan struct{}
}

// lockedBuffer is written by a process and read by its test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// command is a call that is not started yet. Nothing of the tests' own environment
// says where etcd is.
func (c *cli) command(args ...string) *exec.Cmd {
	cmd := exec.Command(c.binary, args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ETCDCTL_") && !strings.HasPrefix(e, "FENC") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "ETCDCTL_ENDPOINTS="+c.addr)
	return cmd
}

// start starts the program, which is killed at the end of the test.
func (c *cli) start(cmd *exec.Cmd) *cliRun {
	c.t.Helper()
	r := &cliRun{t: c.t, cmd: cmd, out: &lockedBuffer{}, err: &lockedBuffer{}, exited: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = r.out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = r.err
	}
	cmd.WaitDelay = time.Second // should something keep its output open
	require.NoError(c.t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(r.exited)
	}()
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-r.exited
		if c.t.Failed() {
			c.t.Logf("%q: %v\n%s%s", cmd.Args[1:], cmd.ProcessState, r.out, r.err)
		}
	})
	return r
}

func (c *cli) begin(args ...string) *cliRun {
	c.t.Helper()
	return c.start(c.command(args...))
}

// code waits for the program to end, and returns its exit code as a shell would.
func (r *cliRun) code() int {
	r.t.Helper()
	select {
	case <-r.exited:
	case <-time.After(eventually):
		r.t.Fatalf("%q does not end: %s%s", r.cmd.Args[1:], r.out, r.err)
	}
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// do runs the program, and requires its exit code.
func (c *cli) do(code int, args ...string) (out, says string) {
	c.t.Helper()
	r := c.begin(args...)
	require.Equal(c.t, code, r.code(), "%q: %s%s", args, r.out, r.err)
	return r.out.String(), r.err.String()
}

// says waits for a text on the standard output.
func (r *cliRun) says(text string) {
	r.t.Helper()
	until(r.t, strconv.Quote(text), func() bool { return strings.Contains(r.out.String(), text) })
}

func (r *cliRun) signal(sig syscall.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(sig))
}

// gone reports whether there is no such process, or nothing of it but its number.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// newCLI returns the program, for the cluster of the bench.
func newCLI(b *bench, binary string) *cli { return &cli{t: b.t, binary: binary, addr: b.addr} }

func TestCommandLine(t *testing.T) {
	harness.Parallel(t)
	binary := buildCLI(t)
	for name, test := range map[string]func(*testing.T, *bench, *cli){
		"bad arguments":            cliBadArguments,
		"runs a command":           cliRuns,
		"held by another":          cliHeld,
		"passes signals on":        cliSignals,
		"ends the wait":            cliInterruptedWait,
		"leaves no process behind": cliLeftovers,
		"evicted":                  cliEvicted,
		"holds for so long":        cliMaxHold,
		"cut off":                  cliCutOff,
		"stopped":                  cliStopped,
		"killed":                   cliKilled,
		"shows":                    cliShows,
		"watches":                  cliWatches,
		"a closed pipe":            cliClosedPipe,
		"no etcd":                  cliNoEtcd,
		"doctor":                   cliDoctor,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			test(t, b, newCLI(b, binary))
		})
	}
	t.Run("authentication", func(t *testing.T) { cliAuthentication(t, binary) })
	t.Run("TLS", func(t *testing.T) { cliTLS(t, binary) })
}

// Whoever has a mistake in a script is told so by the same code each time, and etcd
// is not asked: here there is none.
func cliBadArguments(t *testing.T, _ *bench, c *cli) {
	c.addr = "127.0.0.1:1"
	for _, args := range [][]string{
		{}, {"frobnicate"}, {"ls", "a", "b"}, {"ls", "--nope"}, {"ls", "-o", "xml"}, {"show"}, {"show", "a", "b"}, {"show", ""},
		{"show", strings.Repeat("n", 1025)},
		{"evict", "x"}, {"evict", "x", "--token", ""}, {"evict", "x", "--token", "7"}, {"evict", "--token", "7.h"},
		{"run"}, {"run", "x"}, {"run", "x", "true"}, {"run", "x", "y", "--", "true"}, {"run", "x", "--"}, {"run", "--", "true"},
		{"run", "--no-wait", "--wait", "1s", "x", "--", "true"}, {"run", "--wait", "-1s", "x", "--", "true"},
		{"run", "--ttl", "1ms", "x", "--", "true"}, {"run", "--ttl", "soon", "x", "--", "true"},
		{"run", "--margin", "15s", "x", "--", "true"}, {"run", "--max-hold", "0s", "x", "--", "true"},
		{"run", "--label", "\xff", "x", "--", "true"}, {"run", "--prefix", "p", "x", "--", "true"},
		{"doctor", "x"}, {"doctor", "--fence-highest", "-1"}, {"doctor", "--fence-highest", "many"},
		{"ls", "--endpoints", "a,,b"}, {"ls", "--user", "u"}, {"ls", "--password", "p"}, {"ls", "--cert", "c"},
		{"ls", "--cacert", "/nowhere"}, {"ls", "--command-timeout", "0s"}, {"--endpoints"},
	} {
		out, says := c.do(2, args...)
		assert.Empty(t, out, args)
		assert.True(t, strings.HasPrefix(says, "fencelock: "), says)
		assert.Equal(t, 1, strings.Count(says, "\n"), says)
	}
	for variable, value := range map[string]string{
		"ETCDCTL_COMMAND_TIMEOUT": "soon", "ETCDCTL_CACERT": "/nowhere", "ETCDCTL_USER": "u", "ETCDCTL_DISCOVERY_SRV": "example.test",
	} {
		cmd := c.command("ls")
		cmd.Env = append(cmd.Env, variable+"="+value)
		if variable == "ETCDCTL_DISCOVERY_SRV" {
			cmd.Env = append(cmd.Env, "ETCDCTL_ENDPOINTS=")
		}
		r := c.start(cmd)
		assert.Equal(t, 2, r.code(), variable)
	}
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"run", "--help"}, {"help", "run"}, {"doctor", "-h"}} {
		out, says := c.do(0, args...)
		assert.Empty(t, says)
		assert.Contains(t, out, "exit codes:", args)
	}
}

func cliRuns(t *testing.T, b *bench, c *cli) {
	for _, name := range []string{"x", "a/b c", "\x1b[2J\n"} {
		out, _ := c.do(7, "run", name, "--", "sh", "-c", `printf '%s\n' "$FENCING_TOKEN" "$FENCING_TOKEN_REVISION" "$FENCELOCK_NAME"; exit 7`)
		lines := strings.SplitN(out, "\n", 3)
		token, err := fencelock.ParseToken(name, lines[0])
		require.NoError(t, err)
		assert.Equal(t, strconv.FormatInt(token.Revision(), 10), lines[1])
		assert.Equal(t, name+"\n", lines[2])
		assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
		assert.Empty(t, harness.Leases(t, b.clean))
	}
	out, says := c.do(0, "run", "x", "--ttl", "3s", "--label", "me", "--", "sh", "-c", "cat; echo problem >&2")
	assert.Empty(t, out)
	assert.Equal(t, "problem\n", says, "nothing is added")
	c.do(128+9, "run", "x", "--", "sh", "-c", "kill -9 $$")
	_, says = c.do(127, "run", "x", "--", "there-is-no-such-command")
	assert.Contains(t, says, "there-is-no-such-command")
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("#!/nowhere/sh\n"), 0o600))
	c.do(126, "run", "x", "--", plain)
	require.NoError(t, os.Chmod(plain, 0o700))
	c.do(127, "run", "x", "--", plain) // its interpreter is missing, which only the start tells
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
	assert.Empty(t, harness.Leases(t, b.clean))
}

func cliHeld(t *testing.T, b *bench, c *cli) {
	k := b.acquire(b.locker(b.client(), fencelock.WithLabel("the other")), "x")
	for _, args := range [][]string{{"--no-wait"}, {"--wait", "0s"}, {"--wait", "200ms"}} {
		_, says := c.do(120, append(append([]string{"run"}, args...), "x", "--", "sh", "-c", "echo ran")...)
		assert.Contains(t, says, "the other")
		assert.Len(t, harness.Keys(t, b.clean, keyPrefix), 1)
	}
	r := c.begin("run", "x", "--wait", "1m", "--", "sh", "-c", "echo ran")
	b.awaitQueue("x", 2)
	assert.Empty(t, r.out.String())
	b.release(k)
	assert.Equal(t, 0, r.code())
	assert.Equal(t, "ran\n", r.out.String())

	// A key without a lease would block it for ever.
	_, err := b.clean.Put(t.Context(), "fencelock/x/stray", "")
	require.NoError(t, err)
	_, says := c.do(123, "run", "x", "--", "true")
	assert.Contains(t, says, "fencelock/x/stray")
	_, err = b.clean.Delete(t.Context(), "fencelock/x/stray")
	require.NoError(t, err)
}

func cliSignals(t *testing.T, b *bench, c *cli) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1} {
		r := c.begin("run", "x", "--", "sh", "-c",
			`trap 'echo got; exit 5' TERM INT HUP USR1; echo ready; while :; do sleep 0.01; done`)
		r.says("ready")
		r.signal(sig)
		assert.Equal(t, 5, r.code(), sig)
		assert.Contains(t, r.out.String(), "got", sig)
		assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
	}
	r := c.begin("run", "x", "--", "sh", "-c", "echo ready; exec sleep 300")
	r.says("ready")
	r.signal(syscall.SIGTERM)
	assert.Equal(t, 128+15, r.code(), "it died of it")
}

func cliInterruptedWait(t *testing.T, b *bench, c *cli) {
	k := b.acquire(b.locker(b.client()), "x")
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		r := c.begin("run", "x", "--", "sh", "-c", "echo ran")
		b.awaitQueue("x", 2)
		r.signal(sig)
		assert.Equal(t, 128+int(sig), r.code())
		assert.Empty(t, r.out.String())
		assert.Len(t, harness.Keys(t, b.clean, keyPrefix), 1)
	}
	b.release(k)
}

// What the command starts is not left to run on without the lock.
func cliLeftovers(t *testing.T, b *bench, c *cli) {
	out, _ := c.do(0, "run", "x", "--", "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!")
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(t, err)
	until(t, "end of what was left", func() bool { return gone(pid) })
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
}

// heart is a process that writes down when it was last alive, and when it was told to
// end, which it ignores; and one that it has started, which does too.
const heartRoleName = "heart"

// The lines of what a heart writes down.
const heartPID, heartLast, heartTold = 0, 1, 2

func heartRole(c *harness.Child) error {
	path := c.Args()[0]
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if len(c.Args()) > 1 {
		child := exec.Command(os.Args[0], c.Args()[1])
		stdin, err := child.StdinPipe()
		if err != nil {
			return err
		}
		defer stdin.Close()
		if err := child.Start(); err != nil {
			return err
		}
	}
	write := func(line, n int64) error {
		_, err := fmt.Fprintf(io.NewOffsetWriter(f, line*21), "%020d\n", n)
		return err
	}
	if err := write(heartPID, int64(os.Getpid())); err != nil {
		return err
	}
	told := c.Context().Done()
	for {
		if err := write(heartLast, time.Now().UnixNano()); err != nil {
			return err
		}
		select {
		case <-told:
			told = nil
			if err := write(heartTold, time.Now().UnixNano()); err != nil {
				return err
			}
		case <-time.After(time.Millisecond):
		}
	}
}

// heart is such a pair as the test sees it.
type heart struct{ parent, child string }

func newHeart(t *testing.T) heart {
	dir := t.TempDir()
	return heart{filepath.Join(dir, "parent"), filepath.Join(dir, "child")}
}

// under starts the pair under run.
func (h heart) under(c *cli, args ...string) *cliRun {
	c.t.Helper()
	self, err := os.Executable()
	require.NoError(c.t, err)
	cmd := c.command(append(append([]string{"run"}, args...), "--", self, h.parent, h.child)...)
	cmd.Env = append(cmd.Env, "FENCELOCK_TEST_ROLE="+heartRoleName)
	stdin, err := cmd.StdinPipe() // kept open: a role ends with it
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = stdin.Close() })
	r := c.start(cmd)
	until(c.t, "heartbeat", func() bool { return lineOf(h.parent, heartLast) > 0 && lineOf(h.child, heartLast) > 0 })
	return r
}

// last is when one of the pair was last alive.
func (h heart) last() time.Time {
	return time.Unix(0, max(lineOf(h.parent, heartLast), lineOf(h.child, heartLast)))
}

// stopped is last, when neither of the pair is alive any more.
func (h heart) stopped(t *testing.T) time.Time {
	t.Helper()
	until(t, "end of the command", func() bool {
		return gone(int(lineOf(h.parent, heartPID))) && gone(int(lineOf(h.child, heartPID)))
	})
	return h.last()
}

// told is when the first of the pair was told to end, if it was.
func (h heart) told() (at time.Time, was bool) {
	n := lineOf(h.parent, heartTold)
	return time.Unix(0, n), n > 0
}

func lineOf(path string, line int) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) <= line {
		return 0
	}
	n, err := strconv.ParseInt(lines[line], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// An operator takes the lock away: the next one may have it at once.
func cliEvicted(t *testing.T, b *bench, c *cli) {
	h := newHeart(t)
	r := h.under(c, "x")
	next := b.acquireLater(b.locker(b.client()), "x")
	b.awaitQueue("x", 2)
	q, err := b.locker(b.client()).Inspect(t.Context(), "x")
	require.NoError(t, err)
	out, _ := c.do(0, "evict", "--token", q.Holder.Token.String(), "x")
	evicted := time.Now()
	assert.Contains(t, out, q.Holder.Token.String())
	k := b.granted(next)
	assert.Equal(t, 121, r.code())
	assert.Contains(t, r.err.String(), "deleted")
	assert.LessOrEqual(t, h.stopped(t).Sub(evicted), evictedWithin+allowance(evicted, time.Now()))
	c.do(120, "evict", "x", "--token", q.Holder.Token.String())
	require.NoError(t, k.Err())
	out, _ = c.do(0, "evict", "x", "-o", "json", "--token", k.Token().String())
	type evictedJSON struct {
		Name, Evicted string
		Revision      int64
	}
	assert.Equal(t, []evictedJSON{{"x", k.Token().String(), k.Token().Revision()}}, jsonLines[evictedJSON](t, out))
	require.ErrorIs(t, k.Release(t.Context()), fencelock.ErrLost)
	c.do(1, "evict", "x", "--token", q.Holder.Token.String())
}

// SIGTERM, then SIGKILL, and only then the next holder.
func cliMaxHold(t *testing.T, b *bench, c *cli) {
	h := newHeart(t)
	r := h.under(c, "--max-hold", "500ms", "--margin", "2s", "x")
	k := b.granted(b.acquireLater(b.locker(b.client()), "x"))
	granted := time.Now()
	assert.Equal(t, 121, r.code())
	last := h.stopped(t)
	told, was := h.told()
	assert.True(t, was)
	assert.True(t, last.Before(granted), "%v after the grant", last.Sub(granted))
	assert.Greater(t, last.Sub(told), time.Second, "it had time")
	assert.Contains(t, r.err.String(), "max-hold")
	b.release(k)

	// One that heeds SIGTERM.
	start := time.Now()
	r = c.begin("run", "--max-hold", "100ms", "--ttl", "60s", "--margin", "30s", "x", "--", "sh", "-c", "exec sleep 300")
	assert.Equal(t, 121, r.code())
	assert.Less(t, time.Since(start), eventually)
}

// No answer to a renewal: nothing of the command runs any more when etcd gives the
// lock to the next one.
func cliCutOff(t *testing.T, b *bench, c *cli) {
	proxy := harness.NewProxy(t, b.addr)
	h := newHeart(t)
	cut := *c
	cut.addr = proxy.Addr()
	r := h.under(&cut, "--ttl", "3s", "--margin", "1s", "x")
	next := b.acquireLater(b.locker(b.client()), "x")
	b.awaitQueue("x", 2)
	proxy.Blackhole()
	k := b.granted(next)
	granted := time.Now()
	proxy.Heal()
	assert.Equal(t, 121, r.code())
	last := h.stopped(t)
	told, was := h.told()
	assert.True(t, was)
	assert.True(t, last.Before(granted), "%v after the grant", last.Sub(granted))
	assert.Greater(t, last.Sub(told), 100*time.Millisecond, "it had time")
	assert.Contains(t, r.err.String(), "expired")
	b.release(k)
}

// goesOnWithin is what is documented of a command whose fencelock was stopped and
// goes on.
const goesOnWithin = 250 * time.Millisecond

// fencelock itself is stopped, and its command is not: once it goes on the command
// is killed. In between there is the token.
func cliStopped(t *testing.T, b *bench, c *cli) {
	h := newHeart(t)
	r := h.under(c, "--ttl", "2s", "x")
	next := b.acquireLater(b.locker(b.client()), "x")
	b.awaitQueue("x", 2)
	r.signal(syscall.SIGSTOP)
	k := b.granted(next)
	granted := time.Now()
	until(t, "heartbeat after the grant", func() bool { return h.last().After(granted) })
	goesOn := time.Now()
	r.signal(syscall.SIGCONT)
	assert.Equal(t, 121, r.code())
	assert.LessOrEqual(t, h.stopped(t).Sub(goesOn), goesOnWithin+allowance(goesOn, time.Now()))
	_, was := h.told()
	assert.False(t, was, "there was no time left to ask")
	require.NoError(t, k.Err())
	b.release(k)

	// A stop that is over in time costs nothing.
	h = newHeart(t)
	r = h.under(c, "--ttl", "30s", "--margin", "1s", "x")
	r.signal(syscall.SIGSTOP)
	goesOn = time.Now()
	until(t, "heartbeat", func() bool { return h.last().After(goesOn) })
	r.signal(syscall.SIGCONT)
	goesOn = time.Now()
	until(t, "heartbeat", func() bool { return h.last().After(goesOn.Add(goesOnWithin)) })
	r.signal(syscall.SIGKILL)
	<-r.exited
	b.forget("x")
}

// forget deletes what a process that was killed has left, as time would.
func (b *bench) forget(name string) {
	b.t.Helper()
	resp, err := b.clean.Get(b.t.Context(), keyPrefix+name+"/", clientv3.WithPrefix())
	require.NoError(b.t, err)
	for _, kv := range resp.Kvs {
		_, err := b.clean.Revoke(b.t.Context(), clientv3.LeaseID(kv.Lease))
		require.NoError(b.t, err)
	}
}

// fencelock itself is killed, and its command with it, where the kernel can do that.
func cliKilled(t *testing.T, b *bench, c *cli) {
	r := c.begin("run", "x", "--", "sh", "-c", "echo $$; exec sleep 300")
	r.says("\n")
	pid, err := strconv.Atoi(strings.TrimSpace(r.out.String()))
	require.NoError(t, err)
	r.signal(syscall.SIGKILL)
	until(t, "end of the command", func() bool { return gone(pid) })
	b.forget("x")
}

// jsonLines reads objects that stand on a line each.
func jsonLines[T any](t *testing.T, text string) (all []T) {
	t.Helper()
	for line := range strings.Lines(text) {
		var v T
		require.NoError(t, json.Unmarshal([]byte(line), &v), line)
		all = append(all, v)
	}
	return all
}

type claimJSON struct {
	Token            string
	Revision         int64
	Label, Host      string
	PID              int
	Since            *time.Time
	RemainingSeconds *float64
}

type queueJSON struct {
	Name, Queue string
	Holder      *claimJSON
	Waiters     []claimJSON
}

func cliShows(t *testing.T, b *bench, c *cli) {
	out, _ := c.do(0, "ls")
	assert.Empty(t, out)
	_, says := c.do(1, "show", "x")
	assert.Contains(t, says, "lock x is held by nobody")

	l := b.locker(b.client(), fencelock.WithLabel("bad\x1b[2J\nlabel"))
	names := []string{"invoices/7", "two words", "\x1b]0;owned\a\xff"}
	held := map[string]*fencelock.Lock{}
	for _, name := range names {
		held[name] = b.acquire(l, name)
	}
	other := b.openLocker(b.client(), fencelock.WithLabel("next"))
	waits := b.acquireLater(other, "two words")
	until(t, "waiter", func() bool {
		q, err := l.Inspect(t.Context(), "two words")
		require.NoError(t, err)
		return len(q.Waiters) == 1
	})

	out, _ = c.do(0, "ls")
	for _, text := range []string{"invoices/7 ", `"two words" `, `"\x1b]0;owned\a\xff" `, held["invoices/7"].Token().String(), "NAME"} {
		assert.Contains(t, out, text)
	}
	assert.NotContains(t, out, "\x1b")
	assert.Equal(t, 4, strings.Count(out, "\n"))
	out, _ = c.do(0, "ls", "inv")
	assert.Equal(t, 2, strings.Count(out, "\n"), out)
	out, _ = c.do(0, "show", "two words")
	for _, text := range []string{`lock "two words"`, "1 waiting", "next", held["two words"].Token().String(), "bad?[2J?label"} {
		assert.Contains(t, out, text)
	}

	out, _ = c.do(0, "ls", "-o", "json")
	queues := jsonLines[queueJSON](t, out)
	require.Len(t, queues, 3)
	for _, q := range queues {
		assert.Equal(t, os.Getpid(), q.Holder.PID)
		assert.NotNil(t, q.Holder.Since)
		assert.Positive(t, *q.Holder.RemainingSeconds)
		// A name that JSON cannot hold is there as the keys have it.
		keys := harness.Keys(t, b.clean, q.Queue)
		assert.NotEmpty(t, keys, q.Queue)
		assert.NotNil(t, q.Waiters, "a list, if an empty one")
	}
	out, _ = c.do(0, "show", "-o", "json", "two words")
	q := jsonLines[queueJSON](t, out)[0]
	assert.Equal(t, "two words", q.Name)
	assert.Equal(t, held["two words"].Token().String(), q.Holder.Token)
	assert.Equal(t, held["two words"].Token().Revision(), q.Holder.Revision)
	require.Len(t, q.Waiters, 1)
	out, _ = c.do(1, "show", "-o", "json", "nobody's")
	assert.Nil(t, jsonLines[queueJSON](t, out)[0].Holder)

	require.NoError(t, other.Close())
	require.ErrorIs(t, harness.Receive(t, waits, soon, "end of the wait").err, fencelock.ErrClosed)
	for _, k := range held {
		b.release(k)
	}
}

func cliWatches(t *testing.T, b *bench, c *cli) {
	l := b.locker(b.client())
	first := b.acquire(l, "a")
	lines, objects := c.begin("watch"), c.begin("watch", "-o", "json", "b")
	lines.says(first.Token().String())

	waits := b.acquireLater(b.locker(b.client()), "a")
	b.awaitQueue("a", 2)
	lines.says("queued")
	b.release(first)
	second := b.granted(waits)
	lines.says("held    a  " + second.Token().String())
	lines.says("ended   a  " + first.Token().String())
	b.release(second)
	lines.says("ended   a  " + second.Token().String())

	for {
		k := b.acquire(l, "b") // until that watch has begun: only then it sees one come
		b.release(k)
		if strings.Contains(objects.out.String(), `"change":"ended"`) {
			break
		}
	}
	type changeJSON struct {
		Change, Name string
		Claim        claimJSON
	}
	for _, line := range jsonLines[changeJSON](t, objects.out.String()[:strings.LastIndex(objects.out.String(), "\n")+1]) {
		assert.Equal(t, "b", line.Name)
		assert.NotEmpty(t, line.Claim.Token)
	}
	objects.signal(syscall.SIGTERM)
	assert.Equal(t, 128+15, objects.code())
}

// Who closes the pipe wants no more, and no message either.
func cliClosedPipe(t *testing.T, b *bench, c *cli) {
	k := b.acquire(b.locker(b.client()), "x")
	for _, args := range [][]string{{"ls"}, {"show", "x"}, {"doctor"}, {"watch"}, {"--help"}} {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		cmd := c.command(args...)
		cmd.Stdout = write
		require.NoError(t, read.Close())
		r := c.start(cmd)
		require.NoError(t, write.Close())
		assert.Equal(t, 128+13, r.code(), args)
		assert.Empty(t, r.err.String(), args)
	}
	// A command that is being run is not left behind for it.
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd := c.command("run", "y", "--", "sh", "-c", "exit 3")
	cmd.Stderr = write
	require.NoError(t, read.Close())
	assert.Equal(t, 3, c.start(cmd).code())
	require.NoError(t, write.Close())
	b.release(k)
}

func cliNoEtcd(t *testing.T, b *bench, c *cli) {
	refuses := *c
	refuses.addr = "127.0.0.1:1"
	silence, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	require.NoError(t, err)
	defer silence.Close()
	silent := *c
	silent.addr = silence.Addr().String()
	for _, c := range []cli{refuses, silent} {
		for _, args := range [][]string{
			{"ls"}, {"show", "x"}, {"evict", "x", "--token", "7.h"}, {"doctor"}, {"watch"},
			{"run", "--ttl", "1s", "x", "--", "sh", "-c", "echo ran"}, {"ls", "--user", "u:p", "--dial-timeout", "500ms"},
		} {
			out, says := c.do(122, append(args[:1:1], append([]string{"--command-timeout", "500ms"}, args[1:]...)...)...)
			assert.NotContains(t, out, "ran")
			assert.Contains(t, says, c.addr, args)
		}
	}
}

func cliDoctor(t *testing.T, b *bench, c *cli) {
	out, _ := c.do(0, "doctor")
	assert.NotContains(t, out, "PROBLEM")
	for _, check := range []string{"members", "leader", "clocks", "quorum", "alarms", "leases", "keys"} {
		assert.Contains(t, out, "ok       "+check)
	}
	assert.Empty(t, harness.Leases(t, b.clean))

	resp, err := b.clean.Put(t.Context(), "fencelock/job/stray'\x1b", "")
	require.NoError(t, err)
	_, err = b.clean.Put(t.Context(), "fencelock/not escaped/1", "")
	require.NoError(t, err)
	out, _ = c.do(1, "doctor", "--fence-highest", strconv.FormatInt(resp.Header.Revision+1000, 10))
	assert.Contains(t, out, "PROBLEM  keys")
	assert.Contains(t, out, `etcdctl del $'fencelock/job/stray\x27\x1b'`)
	assert.Contains(t, out, "PROBLEM  tokens")
	assert.Contains(t, out, "--bump-revision")
	assert.Contains(t, out, `note     keys      key "fencelock/not escaped/1"`)
	assert.NotContains(t, out, "\x1b")
	out, _ = c.do(1, "doctor", "-o", "json")
	type findingJSON struct{ Level, Check, Text, Do string }
	problems := 0
	for _, f := range jsonLines[findingJSON](t, out) {
		if f.Level == "problem" {
			problems++
			assert.NotEmpty(t, f.Do)
		}
	}
	assert.Equal(t, 1, problems)
	_, err = b.clean.Delete(t.Context(), keyPrefix, clientv3.WithPrefix())
	require.NoError(t, err)
	c.do(0, "doctor", "--fence-highest", "1")
}

func cliAuthentication(t *testing.T, binary string) {
	g := newGuarded(t, 0)
	g.addWorker("worker")
	g.addUser("nobody")
	c := newCLI(g.bench, binary)
	_, says := c.do(123, "ls")
	assert.Contains(t, says, "ETCDCTL_USER")
	c.do(123, "ls", "--user", "worker:wrong")
	_, says = c.do(123, "ls", "--user", "nobody", "--password", rightPassword)
	assert.Contains(t, says, `"fencelock/"`)
	c.do(123, "run", "--user", "nobody:"+rightPassword, "x", "--", "true")
	c.do(0, "--user", "worker:"+rightPassword, "run", "x", "--", "true")
	cmd := c.command("run", "x", "--", "sh", "-c", `"$0" ls`, binary) // the environment passes
	cmd.Env = append(cmd.Env, "ETCDCTL_USER=worker", "ETCDCTL_PASSWORD="+rightPassword)
	r := c.start(cmd)
	assert.Equal(t, 0, r.code())
	assert.Contains(t, r.out.String(), "x ")
	c.do(0, "doctor", "--user", "root:"+rightPassword)
}

func cliTLS(t *testing.T, binary string) {
	harness.NoLeaks(t)
	trusted := newAuthority(t)
	c := &cli{t: t, binary: binary, addr: startTLSEtcd(t, trusted)}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	key, cert := trusted.issue(t, x509.ExtKeyUsageClientAuth)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	flags := []string{"--cacert", write("ca.pem", "CERTIFICATE", trusted.cert.Raw),
		"--cert", write("cert.pem", "CERTIFICATE", cert), "--key", write("key.pem", "PRIVATE KEY", der)}
	c.do(0, append([]string{"run", "x"}, append(flags, "--", "true")...)...)
	out, _ := c.do(0, append([]string{"doctor"}, flags...)...)
	assert.Contains(t, out, "ok       clocks")
	c.do(122, "ls", "--command-timeout", "1s") // without
	c.do(122, "ls", "--command-timeout", "1s", "--cacert", filepath.Join(dir, "ca.pem"))
	foreign := newAuthority(t)
	c.do(122, append([]string{"ls", "--command-timeout", "1s"}, append(flags[2:], "--cacert", write("other.pem", "CERTIFICATE", foreign.cert.Raw))...)...)
	cmd := c.command("show", "x")
	cmd.Env = append(cmd.Env, "ETCDCTL_CACERT="+flags[1], "ETCDCTL_CERT="+flags[3], "ETCDCTL_KEY="+flags[5])
	assert.Equal(t, 1, c.start(cmd).code(), "nobody holds it")
}
