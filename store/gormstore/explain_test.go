package gormstore_test

import (
	"strings"
	"testing"
)

// TestExplain: the statements whose cost must not grow go by their indexes, and a
// missing index shows.
func TestExplain(t *testing.T) {
	everywhere(t, func(p *place) {
		p.register("job")
		plans, err := p.s.Explain(p.ctx)
		p.must(err)
		if len(plans) != 4 {
			p.Fatalf("%d plans", len(plans))
		}
		for _, plan := range plans {
			if !plan.ByIndex || plan.Text == "" {
				p.Errorf("%s does not go by %s:\n%s", plan.Statement, plan.Index, plan.Text)
			}
		}
		for _, plan := range plans {
			drop := "DROP INDEX " + plan.Index
			if p.mariadb() {
				drop += " ON " + plan.Index[:strings.LastIndex(plan.Index, "_")]
			}
			p.must(p.db.Exec(drop).Error)
		}
		plans, err = p.s.Explain(p.ctx)
		p.must(err)
		for _, plan := range plans {
			if plan.ByIndex || strings.TrimSpace(plan.Text) == "" {
				p.Errorf("%s goes by %s, which is not there:\n%s", plan.Statement, plan.Index, plan.Text)
			}
		}
	})
}
