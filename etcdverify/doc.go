// Package etcdverify tells fencing tokens that etcd can have issued from those it
// cannot, for services that take tokens from clients they do not trust to be right.
//
// A token is a revision of etcd. One that is above etcd's current revision was
// made up or damaged on its way, or comes from another cluster; a fence that took
// it would refuse everybody else until etcd got there, which for the largest
// int64 is never.
//
//	verifier, err := etcdverify.New(client)
//	…
//	require := httpfence.Require(scope, httpfence.WithVerifier(verifier.Verify))
//
// What passes is not proved to be genuine: a number up to the current revision
// can be made up too. The harm of that is bounded, and ends by itself: the fence refuses
// the present holder, until the lock is granted the next time, because that token is
// larger than any that passed before. Where clients are hostile, authenticate them: a token is no
// credential.
//
// A verifier is no fence. It looks at no mark, and stale tokens pass.
package etcdverify
