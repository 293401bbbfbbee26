// Command fencelock runs a command under a distributed lock in etcd, and shows,
// watches and repairs such locks.
//
//	fencelock run NAME -- COMMAND [ARG...]
//	fencelock ls [PREFIX]
//	fencelock show NAME
//	fencelock watch [PREFIX]
//	fencelock evict NAME --token TOKEN
//	fencelock doctor
//
// The flags that say where etcd is are those of etcdctl, and so are the environment
// variables. fencelock --help has them, and the exit codes.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// command is one of the things that this program does.
type command struct {
	name     string
	args     string // how its arguments are called
	does     string // in a line
	more     string // what else there is to say
	register func(*flag.FlagSet) func(context.Context, *call) error
}

// call is one call of a command.
type call struct {
	args       []string // without the flags
	command    []string // what came after "--"; nil without one
	connection *connection
	out        *bufio.Writer // the standard output
}

var commands = []command{runCommand, lsCommand, showCommand, watchCommand, evictCommand, doctorCommand}

// The main goroutine stays on the main thread, which ends with the process and not
// before: the kernel sends a parent-death signal when the thread ends that forked.
func init() { runtime.LockOSThread() }

func main() {
	out := bufio.NewWriter(os.Stdout)
	err := dispatch(context.Background(), os.Args[1:], out)
	// Of a pipe that its reader closed the process dies, as others do.
	if ferr := out.Flush(); err == nil && ferr != nil {
		err = fmt.Errorf("writing to the standard output: %w", ferr)
	}
	code := codeOf(err)
	if text := messageOf(err); text != "" {
		fmt.Fprintln(os.Stderr, printable(text))
	}
	os.Exit(code)
}

func dispatch(ctx context.Context, args []string, out *bufio.Writer) error {
	conn := &connection{}
	global := newFlagSet()
	conn.register(global)
	if err := global.Parse(args); errors.Is(err, flag.ErrHelp) {
		return help(out)
	} else if err != nil {
		return usage("%v", err)
	}
	// Before the command's own set takes the variables over, with the defaults.
	before := map[string]string{}
	global.Visit(func(f *flag.Flag) { before[f.Name] = f.Value.String() })
	rest := global.Args()
	if len(rest) == 0 {
		return usage("a command is missing")
	}
	if rest[0] == "help" {
		if len(rest) == 1 {
			return help(out)
		}
		rest = []string{rest[1], "--help"}
	}
	for _, c := range commands {
		if c.name != rest[0] {
			continue
		}
		fs := newFlagSet()
		do := c.register(fs)
		own := flagNames(fs)
		conn.register(fs)
		for name, value := range before {
			_ = fs.Set(name, value) // it could be set before
		}
		positional, after, err := parse(fs, rest[1:])
		switch {
		case errors.Is(err, flag.ErrHelp):
			return c.help(out, fs, own)
		case err != nil:
			return usage("%s: %v", c.name, err)
		}
		if err := conn.fromEnvironment(fs); err != nil {
			return err
		}
		return do(ctx, &call{args: positional, command: after, connection: conn, out: out})
	}
	return usage("there is no command %q", rest[0])
}

func newFlagSet() *flag.FlagSet {
	fs := flag.NewFlagSet("fencelock", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // what is wrong is said once, by main
	return fs
}

// parse takes flags before, between and behind the other arguments, as etcdctl
// does; package flag alone stops at the first that is none. after is what follows
// the first "--".
func parse(fs *flag.FlagSet, args []string) (positional, after []string, err error) {
	for i, arg := range args {
		if arg == "--" {
			args, after = args[:i], append([]string{}, args[i+1:]...)
			break
		}
	}
	for {
		if err := fs.Parse(args); err != nil {
			return nil, nil, err
		}
		if fs.NArg() == 0 {
			return positional, after, nil
		}
		positional = append(positional, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

func flagNames(fs *flag.FlagSet) map[string]bool {
	names := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) { names[f.Name] = true })
	return names
}

func help(out io.Writer) error {
	var b strings.Builder
	b.WriteString("fencelock runs a command under a distributed lock in etcd, and shows and repairs such locks.\n\n")
	b.WriteString("usage: fencelock COMMAND [FLAGS] [ARGUMENTS]\n\ncommands:\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "  %-7s %-34s %s\n", c.name, c.args, c.does)
	}
	b.WriteString("\nfencelock COMMAND --help says more about one of them.\n\n")
	b.WriteString(exitCodes)
	b.WriteString("\nflags of every command, named as etcdctl names them; each can be given in the environment\n" +
		"as ETCDCTL_ENDPOINTS, ETCDCTL_CACERT and so on instead, and --prefix as FENCELOCK_PREFIX:\n")
	fs := newFlagSet()
	(&connection{}).register(fs)
	printFlags(&b, fs, func(string) bool { return true })
	_, err := io.WriteString(out, b.String())
	return err
}

func (c command) help(out io.Writer, fs *flag.FlagSet, own map[string]bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "usage: fencelock %s [FLAGS] %s\n\n%s\n", c.name, c.args, c.more)
	if len(own) > 0 {
		b.WriteString("\nflags:\n")
		printFlags(&b, fs, func(name string) bool { return own[name] })
	}
	b.WriteString("\nflags that say where etcd is:\n")
	printFlags(&b, fs, func(name string) bool { return !own[name] })
	b.WriteString("\n" + exitCodes)
	_, err := io.WriteString(out, b.String())
	return err
}

func printFlags(b *strings.Builder, fs *flag.FlagSet, which func(name string) bool) {
	fs.VisitAll(func(f *flag.Flag) {
		if !which(f.Name) {
			return
		}
		kind, text := flag.UnquoteUsage(f)
		dashes := "--"
		if len(f.Name) == 1 {
			dashes = "-"
		}
		fmt.Fprintf(b, "  %s\n        %s", strings.TrimRight(dashes+f.Name+" "+kind, " "), text)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0s" {
			fmt.Fprintf(b, " (default %s)", f.DefValue)
		}
		b.WriteString("\n")
	})
}
