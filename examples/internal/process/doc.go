// Package process lets a program start itself again, as child processes that
// play a role each and report to it.
//
// A pause, a kill, a lost lock mean what they mean in production only if they
// happen to whole processes. Starting the same binary again needs nothing else
// to be built or found. It works where there are Unix signals.
package process
