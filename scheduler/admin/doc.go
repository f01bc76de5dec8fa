// Package admin serves what operators and their programs ask of one process over
// HTTP: its health, its metrics, and its degradation switch.
//
//	GET    /healthz            200 while the scheduler works, or waits for its servers
//	GET    /readyz             200 while ticks can run; tells store, coordinator, clock, mode
//	GET    /metrics            for Prometheus, where Deps.Metrics is given
//	GET    /api/v1/switch      what the degradation switch says, and why
//	PUT    /api/v1/switch      sets it for this process
//	DELETE /api/v1/switch      clears what was set for this process
//
// # Security
//
// It listens on loopback. Another address is refused without a token and TLS, unless
// the operator writes insecure: true. Whatever changes something needs the token,
// on loopback as well: any user of a host can reach its loopback. Changes need the
// ETag of the state that they change in If-Match, so that nobody changes what he has
// not seen (* is any state, for those who mean it), and a body of type application/json; requests from pages of other sites
// are refused. Every change is audited by the switch with the name that it was made
// under.
//
// # Not guaranteed
//
// A setting for this process ends with it. One for the fleet is made in the
// configuration centre, see `solotick degrade`.
package admin
