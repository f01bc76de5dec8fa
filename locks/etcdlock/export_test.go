package etcdlock

// Path is what the keys of a lock begin with.
func Path(prefix, key string) string { return (&Driver{prefix: prefix + "/"}).dir(key) }

// InFront reports whether somebody who waits watches a line, and knows who is ahead.
func (d *Driver) InFront() bool {
	d.hub.mu.Lock()
	defer d.hub.mu.Unlock()
	for _, w := range d.hub.byID {
		if w.view != nil && w.begun && w.view.looked {
			return true
		}
	}
	return false
}
