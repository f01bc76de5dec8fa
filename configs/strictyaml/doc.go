// Package strictyaml reads a YAML document into Go structs and tells, for
// everything that is wrong with it, where that stands and what to write instead.
//
// Guarantees:
//   - Unknown and repeated keys, wrong types, empty values, several documents and
//     an empty file are errors. All problems of a document are reported together,
//     sorted by line; only a syntax error hides what comes after it.
//   - ${NAME} and ${NAME:-default} are expanded in scalar values after parsing, so
//     no variable can add structure. $$ is a dollar sign; a dollar sign before
//     anything but '{' or '$' stands for itself. Keys are never expanded.
//   - What came from the environment, from a file, or goes into a secret.Value is
//     never part of a message; the text as written is shown instead.
//   - Documents over [MaxBytes], aliases that refer to themselves, and aliases
//     that expand beyond [MaxNodes] values are refused.
//
// Fields are named by yaml tags. The options inline (a struct, or a map that
// takes the keys that no field has) and the tag short:"true" (the field that a
// scalar or list stands for where a mapping is expected) are understood. A field
// of type secret.Value named k also accepts k_file, the path of a file that
// holds the value; such a field in a map accepts {file: PATH}.
package strictyaml
