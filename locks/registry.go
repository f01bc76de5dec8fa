package locks

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/solotick/solotick/locks/driver"
)

// Plugin is a lock backend under the name it has in a configuration file.
type Plugin struct {
	Name string
	// Open makes the driver. It calls decode at most once, with a pointer to its
	// own configuration struct; decode is strict, and leaves the struct as it is
	// where the file has no part for this plugin. Open checks what it decoded; it
	// need not wait until the backend can be reached.
	Open func(ctx context.Context, decode func(into any) error) (driver.Driver, error)
}

// Registry is a set of plugins by name. It is an immutable value, safe for
// concurrent use; the zero Registry is empty.
type Registry struct{ plugins []Plugin }

// NewRegistry returns a registry of plugins. A plugin without name or Open, and
// two of one name, are errors that match [ErrInvalid].
func NewRegistry(plugins ...Plugin) (*Registry, error) {
	sorted := slices.Clone(plugins)
	slices.SortFunc(sorted, func(a, b Plugin) int { return strings.Compare(a.Name, b.Name) })
	for i, p := range sorted {
		switch {
		case p.Name == "":
			return nil, invalid("plugin: one of %d has no name", len(plugins))
		case p.Open == nil:
			return nil, invalid("plugin %q: its Open is nil", p.Name)
		case i > 0 && p.Name == sorted[i-1].Name:
			return nil, invalid("plugin %q: it is registered twice; remove one", p.Name)
		}
	}
	return &Registry{sorted}, nil
}

// Names returns the registered names, sorted.
func (r *Registry) Names() []string {
	names := make([]string, len(r.plugins))
	for i, p := range r.plugins {
		names[i] = p.Name
	}
	return names
}

// Open opens the driver called name. A nil decode stands for a file without a
// part for the plugin. An unknown name is an error that matches [ErrInvalid] and
// lists the known ones.
func (r *Registry) Open(ctx context.Context, name string, decode func(into any) error) (driver.Driver, error) {
	i := slices.IndexFunc(r.plugins, func(p Plugin) bool { return p.Name == name })
	if i < 0 {
		return nil, invalid("driver %q: no such lock driver; known are %s", name, strings.Join(r.Names(), ", "))
	}
	if decode == nil {
		decode = func(any) error { return nil }
	}
	d, err := r.plugins[i].Open(ctx, decode)
	if err != nil {
		return nil, fmt.Errorf("locks: open driver %q: %w", name, err)
	}
	return d, nil
}
