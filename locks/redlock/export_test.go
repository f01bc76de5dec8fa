package redlock

// Checked waits for the look at the nodes' settings that the first request starts.
func (d *Driver) Checked() { d.checked.Wait() }

// Settled waits until nothing goes on in the background.
func (d *Driver) Settled() { d.work.Wait() }
