package integration

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/internal/integration/harness"
)

// openTerminal opens a pseudo-terminal of that size, and returns both sides of it.
func openTerminal(t *testing.T, columns, lines uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = person.Close() })
	fd := int(person.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: lines, Col: columns}))
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = program.Close() })
	return person, program
}

// onTerminal starts the program on a terminal of its own, as a shell would.
func (c *cli) onTerminal(columns, lines uint16, args ...string) (*cliRun, io.Writer) {
	c.t.Helper()
	person, program := openTerminal(c.t, columns, lines)
	cmd := c.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	r := c.start(cmd)
	require.NoError(c.t, program.Close())
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(r.out, person) // ends with an error when nobody has the other side
	}()
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
	})
	return r, person
}

func TestCommandLineOnATerminal(t *testing.T) {
	harness.Parallel(t)
	binary := buildCLI(t)
	for name, test := range map[string]func(*testing.T, *bench, *cli){
		"watch draws in place":     ptyWatch,
		"the command can read":     ptyReads,
		"Ctrl-C is the command's":  ptyInterrupt,
		"lost":                     ptyLost,
		"a script has it again":    ptyScript,
		"in the background it has": ptyBackground,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			test(t, b, newCLI(b, binary))
		})
	}
}

// screen is what a terminal shows at the end, for the few sequences that are used.
func screen(text string) string {
	if i := strings.LastIndex(text, "\x1b[H"); i >= 0 {
		text = text[i:]
	}
	for _, sequence := range []string{"\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"} {
		text = strings.ReplaceAll(text, sequence, "")
	}
	return text
}

func ptyWatch(t *testing.T, b *bench, c *cli) {
	l := b.locker(b.client())
	k := b.acquire(l, "first\x1b]0;owned\a")
	r, _ := c.onTerminal(60, 6, "watch")
	r.says("1 locks")
	for i := range 9 {
		defer b.release(b.acquire(l, fmt.Sprint("more", i)))
	}
	r.says("10 locks")
	until(t, "whole screen", func() bool { return strings.Contains(screen(r.out.String()), "more\r\n") })
	assert.Equal(t, 1, strings.Count(r.out.String(), "\x1b[2J"), "it is not blanked each time")
	assert.NotContains(t, r.out.String(), "\x1b]")
	b.release(k)
	r.says("9 locks")
	until(t, "screen without it", func() bool {
		s := screen(r.out.String())
		return strings.Contains(s, "9 locks") && strings.Contains(s, "more\r\n")
	})
	shown := screen(r.out.String())
	assert.NotContains(t, shown, "first")
	assert.LessOrEqual(t, strings.Count(shown, "\n"), 6, shown)
	for line := range strings.SplitSeq(shown, "\r\n") {
		assert.LessOrEqual(t, len([]rune(line)), 60)
	}
	r.signal(syscall.SIGINT)
	assert.Equal(t, 128+2, r.code())
}

// A process group of its own is in the background of its terminal, and one that reads
// there is stopped.
func ptyReads(t *testing.T, _ *bench, c *cli) {
	r, person := c.onTerminal(80, 24, "run", "x", "--", "sh", "-c", "echo ready; read line; echo got $line; exit 4")
	r.says("ready")
	_, err := io.WriteString(person, "this\n")
	require.NoError(t, err)
	assert.Equal(t, 4, r.code())
	r.says("got this")
}

func ptyInterrupt(t *testing.T, b *bench, c *cli) {
	r, person := c.onTerminal(80, 24, "run", "x", "--", "sh", "-c", "trap 'echo interrupted; exit 6' INT; echo ready; while :; do sleep 0.01; done")
	r.says("ready")
	_, err := io.WriteString(person, "\x03")
	require.NoError(t, err)
	assert.Equal(t, 6, r.code())
	assert.Empty(t, harness.Keys(t, b.clean, keyPrefix))
}

func ptyLost(t *testing.T, b *bench, c *cli) {
	r, _ := c.onTerminal(80, 24, "run", "x", "--", "sh", "-c", "echo ready; sleep 300; echo never")
	r.says("ready")
	b.forget("x")
	assert.Equal(t, 121, r.code())
	assert.NotContains(t, r.out.String(), "never")
	r.says("was lost")
}

// What comes after it in a script has the terminal again.
func ptyScript(t *testing.T, _ *bench, c *cli) {
	script := *c
	script.binary = "/bin/sh"
	r, person := script.onTerminal(80, 24, "-c", `"$0" run x -- true; echo ready; read line; echo got $line`, c.binary)
	r.says("ready")
	_, err := io.WriteString(person, "this\n")
	require.NoError(t, err)
	assert.Equal(t, 0, r.code())
	r.says("got this")
}

// In the background it leaves the terminal to whoever has it.
func ptyBackground(t *testing.T, _ *bench, c *cli) {
	script := *c
	script.binary = "/bin/bash"
	r, person := script.onTerminal(80, 24, "-c", `set -m; "$0" run x -- sh -c 'echo ran' & wait $!; echo ready; read line; echo got $line`, c.binary)
	r.says("ran")
	r.says("ready")
	_, err := io.WriteString(person, "this\n")
	require.NoError(t, err)
	assert.Equal(t, 0, r.code())
	r.says("got this")
}
