// Package carrier is what the fences over a network share: how the text of one
// token gets on a request and off it, and how a refusal gets back. It knows no
// protocol.
package carrier
