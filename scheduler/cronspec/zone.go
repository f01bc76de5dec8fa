package cronspec

import (
	"archive/zip"
	_ "embed"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The zone data are a copy of the ones in Go's own distribution. The package
// time/tzdata would not do: the host's data come before it, and two hosts with
// different data make two different ticks of one.
//
//go:generate sh tzdata/update.sh

//go:embed tzdata/zoneinfo.zip
var zoneinfo string

//go:embed tzdata/VERSION
var zoneinfoVersion string

// zone is a time zone and the stretch of it that was asked for last. All specs
// of a zone share it.
type zone struct {
	name string
	loc  *time.Location
	last atomic.Pointer[span]
}

// zones remembers loaded zones by name. There are some 600 names, so it stays small.
var zones sync.Map

var archive = sync.OnceValues(func() (*zip.Reader, error) {
	return zip.NewReader(strings.NewReader(zoneinfo), int64(len(zoneinfo)))
})

// TZDataVersion returns the version of the IANA zone data in use, such as
// "2025c", or "ZONEINFO=path" if that environment variable, read as package time
// reads it, replaces the embedded data. Log it: replicas must agree.
func TZDataVersion() string {
	if path := os.Getenv("ZONEINFO"); path != "" {
		return "ZONEINFO=" + path
	}
	return strings.TrimSpace(zoneinfoVersion)
}

func loadZone(name string) (*zone, error) {
	if z, ok := zones.Load(name); ok {
		return z.(*zone), nil
	}
	loc, err := loadLocation(name)
	if err != nil {
		remedy := "use an IANA name such as Europe/Berlin or UTC"
		if similar := similarZone(name); similar != "" {
			remedy = "did you mean " + similar + "?"
		}
		return nil, refuse("zone", name, remedy, "is not in the zone data (%s)", TZDataVersion())
	}
	z, _ := zones.LoadOrStore(name, &zone{name: name, loc: loc})
	return z.(*zone), nil
}

func loadLocation(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	if name == "" || name == "Local" {
		return nil, errors.New("depends on the host")
	}
	if os.Getenv("ZONEINFO") != "" {
		return time.LoadLocation(name)
	}
	files, err := archive()
	if err != nil {
		return nil, err
	}
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	if info, err := file.Stat(); err != nil || info.IsDir() {
		return nil, fs.ErrNotExist
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(name, data)
}

// similarZone finds a zone whose name differs in case only, or ends in the given city.
func similarZone(name string) string {
	files, err := archive()
	if err != nil {
		return ""
	}
	city := strings.ReplaceAll(strings.ToLower(name), " ", "_")
	for _, f := range files.File {
		known := strings.ToLower(f.Name)
		if known == city || strings.HasSuffix(known, "/"+city) {
			return strings.TrimSuffix(f.Name, "/")
		}
	}
	return ""
}
