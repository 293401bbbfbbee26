// Package harness is what the integration tests stand on: real etcd servers
// and workers as child processes, a TCP proxy that spoils a connection in one
// direction at a time, wrappers of the real etcd client that lose answers, and
// checks that nothing is left behind.
//
// # Why child processes
//
// A server in the test's own process cannot be stopped with SIGSTOP, does not
// die of SIGKILL, and its goroutines hide the leaks of the library. So the test
// binary executes itself again: [Main], called from TestMain, runs a role
// instead of the tests when it is told to. The role "etcd" is built in; a
// package adds its own.
//
//	func TestMain(m *testing.M) {
//		harness.Main(m, harness.Roles{"holder": runHolder})
//	}
//
// Every child dies with its test, and with the test binary at the latest,
// however that ends. A program that is no test gets the same from [RunRole] and
// [Program].
//
// # Failing
//
// Functions that take a [testing.TB], and the methods of what they return that
// have no error result, end the test when they fail; so they belong on the
// test's own goroutine. What a goroutine of a test may need has a variant that
// returns an error.
//
// The package needs a Unix system.
package harness
