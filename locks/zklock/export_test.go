package zklock

// KeyPath is the path of a key's node.
func KeyPath(prefix, key string) string { return prefix + "/" + nodeName(key) }
