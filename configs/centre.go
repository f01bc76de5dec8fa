package configs

import (
	"maps"
	"reflect"
	"slices"

	"github.com/solotick/solotick/configs/strictyaml"
	"github.com/solotick/solotick/scheduler"
)

// Degradation is the switch, and who may set it for all processes.
type Degradation struct {
	// Degradation is the switch as the file sets it.
	scheduler.Degradation `yaml:",inline"`
	// Centre is where the switch of all processes is set. It needs a restart.
	Centre Centre `yaml:"centre"`
}

// The configuration centres that need no driver.
const (
	CentreInStore = "store" // in the store's database
	NoCentre      = "none"
)

// Centre says where the setting of the switch for all processes is kept.
type Centre struct {
	// Driver is store, none, or the name of a configuration centre. Default store.
	Driver string `yaml:"driver"`
	// Sections are the drivers' own parts, by driver name. A driver that the locks use as
	// well needs none: it is reached as they are.
	Sections map[string]strictyaml.Raw `yaml:",inline"`
}

// DecodeCentre decodes the part of the configuration centre, strictly: its own or, where
// there is none, that of the locks if their driver is the same.
func (c *Config) DecodeCentre(into any) error {
	own, ok := c.Degradation.Centre.Sections[c.Degradation.Centre.Driver]
	if !ok && c.Locks.Driver == c.Degradation.Centre.Driver {
		return c.Locks.Decode(into)
	}
	return own.Decode(into)
}

// centre looks at where the switch of all processes is set.
func (c *checker) centre() {
	const path = "degradation.centre"
	d := c.Degradation.Centre
	known := append([]string{CentreInStore, NoCentre}, c.o.CentreDrivers...)
	if c.o.CentreDrivers != nil {
		allowed(c, path+".driver", d.Driver, known...)
	}
	_, own := d.Sections[d.Driver]
	switch {
	case d.Driver == CentreInStore || d.Driver == NoCentre:
		if own {
			c.doc.Add(path+"."+d.Driver, "has no settings", "remove it")
		}
	case !own && c.Locks.Driver != d.Driver:
		if c.o.CentreDrivers == nil || slices.Contains(known, d.Driver) {
			c.doc.Add(path+".driver", d.Driver+" has no section that says how to reach it", "write "+d.Driver+": beside driver, or name the same driver for the locks")
		}
	case own && c.o.CheckCentre != nil && slices.Contains(known, d.Driver):
		c.doc.AddError(path+"."+d.Driver, c.o.CheckCentre(d.Driver, c.DecodeCentre))
	}
	for _, key := range slices.Sorted(maps.Keys(d.Sections)) {
		if key != d.Driver && !slices.Contains(known, key) {
			c.doc.UnknownKey(path, key, append(append(strictyaml.Keys(reflect.TypeFor[Centre]()), known...), d.Driver))
		}
	}
}

// centrePart is what says how the configuration centre is reached.
func (c *Config) centrePart() strictyaml.Raw {
	d := c.Degradation.Centre.Driver
	if own, ok := c.Degradation.Centre.Sections[d]; ok || c.Locks.Driver != d {
		return own
	}
	return c.Locks.Sections[d]
}
