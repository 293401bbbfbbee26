// Package otelfence makes OpenTelemetry metrics and spans of what happens to
// locks. [New] returns hooks, which a Locker takes with [fencelock.WithHooks]; a
// fence takes hooks of its own, made with [WithFence]. The package uses the stable
// OpenTelemetry API only: SDK and exporter are the program's choice.
//
// # Metrics
//
// Attributes have a bounded set of values; see [WithNameLabel] for the lock's.
// Those of a lock all have fencelock.lock.label. Counters stand at 0 from the first
// event of a label on, for each reason and result, so that a first loss is a rise.
//
//	fencelock.acquisitions              {acquisition}  counter; fencelock.result: granted or a fencelock.Result
//	fencelock.wait.duration             s              histogram; time in the queue of calls that queued; fencelock.wait.granted
//	fencelock.lock.waiters              {waiter}       up-down counter; calls in the queue now
//	fencelock.lock.held                 {lock}         up-down counter; locks held now, lost ones left out
//	fencelock.lock.lost_running         {lock}         up-down counter; lost locks whose work has not returned
//	fencelock.hold.duration             s              histogram; from grant to the work's return; fencelock.hold.outcome
//	fencelock.hold.ttl_ratio            1              histogram; the same as a share of the TTL; fencelock.hold.outcome
//	fencelock.losses                    {loss}         counter; fencelock.loss.reason, fencelock.loss.running
//	fencelock.work_after_loss.duration  s              histogram; fencelock.loss.reason
//	fencelock.releases                  {release}      counter; fencelock.release.confirmed
//	fencelock.release.duration          s              histogram; fencelock.release.confirmed
//	fencelock.tokens.unused             {token}        counter
//	fencelock.lease.renewals            {renewal}      counter; fencelock.renewal.answered
//	fencelock.lease.renewal.duration    s              histogram; answered renewals
//	fencelock.lease.margin              s              histogram; left to the deadline when a renewal was answered
//	fencelock.lease.margin_ratio        1              histogram; the same as a share of the TTL
//	fencelock.fence.rejections          {token}        counter; fencelock.fence.name, fencelock.rejection.reason
//
// fencelock.hold.outcome is released, unconfirmed or lost; fencelock.rejection.reason
// is stale, no-token, scope, invalid or other. The renewals have no lock: a lease
// carries all of a Locker's.
//
// # Spans
//
//	fencelock.acquire  from the call to the grant or failure; the time in the queue is its event "wait"
//	fencelock.hold     from the grant to the end of the release, or to the work's return after a loss
//	fencelock.release  the release, inside of the hold
//
// Acquire and hold are children of the span in the acquiring call's context, and
// the hold has a link to the acquire. The hold's context, which the callback gets
// and [fencelock.Lock.Context] returns, carries the hold's span, so what the work
// starts with it stands inside of the hold. Acquire spans are made when the call is
// over, with the times they had; requests to etcd do not stand inside of them. All
// have the lock's full name (fencelock.lock.name), and the token (fencelock.token)
// where there is one. Looking at a trace does not count as a token's use.
//
// A loss is an event "lost" of the hold, at the time of the loss, with the reason,
// and makes the span's status an error. An unused token is an event of the span in
// the acquiring call's context, since it is known only after the release.
package otelfence
