package etcdlock

// Path is what the keys of a lock begin with.
func Path(prefix, key string) string { return (&Driver{prefix: prefix + "/"}).dir(key) }
