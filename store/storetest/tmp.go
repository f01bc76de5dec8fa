package storetest

import "github.com/solotick/solotick/store"

const fencesRise = "fences of one job strictly rise from claim to claim"

var (
	jobCases, activeCases, fetchCases, leaseCases, finishCases, settleCases, recordCases, stressCases []suiteCase
)

func settleOne(job string, seen, to store.Millis) store.SettleRequest {
	return store.SettleRequest{Namespace: space, Jobs: []store.SettleJob{{Job: job, Seen: seen, To: to}}}
}

func nothing(store.TickView) store.Settlement { return store.Settlement{} }
