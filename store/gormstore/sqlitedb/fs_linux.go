package sqlitedb

import "syscall"

const (
	readWrite = 2 | 4 // access(2): W_OK and R_OK
)

// writable asks the kernel, which also knows read-only mounts.
func writable(path string) bool { return syscall.Access(path, readWrite) == nil }

// networkFS names the network file system that dir lies on, or "". Magic numbers
// of statfs(2).
func networkFS(dir string) string {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return ""
	}
	return map[uint32]string{
		0x6969: "nfs", 0x517b: "smb", 0xff534d42: "cifs", 0xfe534d42: "smb2", 0x5346414f: "afs", 0x00c36400: "ceph",
		0x0bd00bd0: "lustre", 0x7461636f: "ocfs2", 0x01161970: "gfs2", 0x19830326: "fhgfs", 0x47504653: "gpfs",
	}[uint32(s.Type)]
}
