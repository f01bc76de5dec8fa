package etcdlock

// Path is what the keys of a lock begin with.
func Path(prefix, key string) string { return (&Driver{prefix: prefix + "/"}).dir(key) }

// InFront reports whether somebody who waits watches a line.
func (d *Driver) InFront() bool {
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	for _, w := range d.hub.byID {
		if w.view != nil && w.begun {
			return true
		}
	}
	return false
}
