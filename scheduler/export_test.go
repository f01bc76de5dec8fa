package scheduler

// Uncorrected makes a scheduler trust its own, perhaps skewed, clock.
func Uncorrected(c *Config) { c.uncorrected = true }
