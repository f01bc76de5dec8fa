package redislock

// Checked waits for the look at the server's settings that the first request
// starts.
func (d *Driver) Checked() { d.checked.Wait() }
