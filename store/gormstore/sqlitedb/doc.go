// Package sqlitedb opens the embedded database: SQLite without cgo, behind one
// *gorm.DB, set up for several processes on one host.
//
// Guarantees: what a commit has acknowledged survives a crash of the process and
// of the machine (WAL, synchronous=FULL); write transactions take the write lock
// when they begin, so none fails half-way because another one wrote first; plain
// SELECTs outside a transaction run beside the writer on connections of their
// own and see everything committed before they began.
//
// Not guaranteed: anything on a network file system (refused where it can be
// told), and fairness between processes that wait for the one write lock. SQLite
// is for one host.
package sqlitedb
