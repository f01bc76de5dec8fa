// Package configs assembles solotick's configuration: one YAML file for store,
// locks, scheduler, degradation switch and the jobs that need no Go.
//
// [Load] accepts a file only as a whole. Everything that is wrong with it is in one
// error, strictyaml.Problems, each with file, line, column and remedy, and without
// any secret. What can be checked without connecting to anything is checked then:
// keys, types, names, cron specs, zones, and whether the lock's TTL leaves room for
// its renewal.
//
// The structs of the parts live in the packages that they configure. The part of a
// lock driver stays raw until the driver decodes it ([Locks.Decode]), so reading a
// file links no client. The same holds for jobs of kind sql, which need a
// database: [Loaded.BuildJobs] is given the factory.
//
// The sample files beside this package show every key; worker.yaml explains them
// one by one.
package configs
