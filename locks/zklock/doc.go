// Package zklock is a lock backend on ZooKeeper.
package zklock
