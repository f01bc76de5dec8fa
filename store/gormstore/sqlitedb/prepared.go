package sqlitedb

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
)

// Bounds of the statements kept per side: prepared ones, texts seen once, and
// their length. A long text is a list of many rows, whose size seldom comes again.
const (
	keptStatements = 256
	keptTexts      = 1024
	keptBytes      = 3 << 10
)

// prepared keeps the statements that were seen before. GORM's own cache cannot
// serve here: it prepares within a transaction what it then prepares again in
// every other one, and it would hand a reader's statement to the writer.
//
// A statement is prepared the second time it is seen, outside of transactions,
// because the one writing connection is taken while one runs. None is ever
// pushed out: a program has a fixed number of statements, and one whose text
// carries values is not seen twice.
type prepared struct {
	db *sql.DB

	mu     sync.RWMutex
	stmts  map[string]*sql.Stmt
	once   map[string]struct{}
	wanted []string // seen again within a transaction
}

func newPrepared(db *sql.DB) *prepared {
	return &prepared{db: db, stmts: map[string]*sql.Stmt{}, once: map[string]struct{}{}}
}

// stmt returns the prepared statement for a query run outside of a transaction;
// nil means that it is to be run as it is.
func (p *prepared) stmt(ctx context.Context, query string) *sql.Stmt {
	if s := p.find(query); s != nil {
		return s
	}
	if !p.again(query, false) {
		return nil
	}
	return p.prepare(ctx, query)
}

// known returns the prepared statement for a query run in a transaction, or nil;
// one that is seen again is prepared before the next transaction.
func (p *prepared) known(query string) *sql.Stmt {
	if s := p.find(query); s != nil {
		return s
	}
	p.again(query, true)
	return nil
}

func (p *prepared) find(query string) *sql.Stmt {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.stmts[query]
}

// again reports whether the query was seen before and there is room for it.
func (p *prepared) again(query string, inTx bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.stmts)+len(p.wanted) >= keptStatements {
		return false
	}
	if _, seen := p.once[query]; !seen {
		if preparable(query) {
			if len(p.once) >= keptTexts {
				clear(p.once)
			}
			p.once[query] = struct{}{}
		}
		return false
	}
	delete(p.once, query)
	if inTx {
		p.wanted = append(p.wanted, query)
	}
	return true
}

// catchUp prepares what was seen again within transactions.
func (p *prepared) catchUp(ctx context.Context) {
	p.mu.RLock()
	none := len(p.wanted) == 0
	p.mu.RUnlock()
	if none {
		return
	}
	p.mu.Lock()
	wanted := p.wanted
	p.wanted = nil
	p.mu.Unlock()
	for _, q := range wanted {
		p.prepare(ctx, q)
	}
}

// prepare returns nil if it fails: the error shows when the query is run.
func (p *prepared) prepare(ctx context.Context, query string) *sql.Stmt {
	s, err := p.db.PrepareContext(ctx, query)
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if had := p.stmts[query]; had != nil || p.stmts == nil {
		_ = s.Close() //nolint:sqlclosecheck // a rival's is in use, or the pool was closed
		return had
	}
	p.stmts[query] = s
	return s
}

func (p *prepared) close() error {
	p.mu.Lock()
	stmts := p.stmts
	p.stmts, p.wanted = nil, nil
	p.mu.Unlock()
	var errs []error
	for _, s := range stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// preparable picks single statements that are worth keeping. A schema change or
// a script is neither.
func preparable(query string) bool {
	if len(query) > keptBytes {
		return false
	}
	switch verb(query) {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE":
		return !strings.Contains(strings.TrimRight(query, "; \n\t"), ";")
	}
	return false
}

// verb is the first word of a statement, in upper case; after WITH, that which follows
// the tables it makes. A comment in front hides it, which sends the statement to the
// writer.
func verb(query string) string {
	query = strings.TrimLeft(query, " \t\r\n(")
	v := word(query)
	if v == "WITH" {
		return verbAfter(query)
	}
	return v
}

// word is the word that the text begins with, if it is no longer than a verb.
func word(text string) string {
	for i := range len(text) {
		if c := text[i] | 0x20; c < 'a' || c > 'z' {
			text = text[:i]
			break
		}
	}
	if len(text) > len("REPLACE") {
		return ""
	}
	return strings.ToUpper(text)
}

// verbAfter is the first verb of a statement outside of parentheses and quotes; none
// where a comment, or a name in brackets, could hide it.
func verbAfter(query string) string {
	depth, quote := 0, byte(0)
	for i := 0; i < len(query); i++ {
		c := query[i]
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"' || c == '`':
			quote = c
		case c == '[' || strings.HasPrefix(query[i:], "--") || strings.HasPrefix(query[i:], "/*"):
			return ""
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && (i == 0 || !letter(query[i-1])) && letter(c):
			v := word(query[i:])
			if end := i + len(v); end < len(query) && letter(query[end]) {
				v = "" // a longer name
			}
			switch v {
			case "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE":
				return v
			}
		}
	}
	return ""
}

// letter reports whether the byte can be part of a name.
func letter(c byte) bool {
	l := c | 0x20
	return l >= 'a' && l <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}
