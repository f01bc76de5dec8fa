// Package examples checks that the documentation is true where a machine can: the
// Go that it shows is compiled, the YAML loads, the keys, tests and commands that it
// names are there. The examples themselves are the folders beside it.
package examples
