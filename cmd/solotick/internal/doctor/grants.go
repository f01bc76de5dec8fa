package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// grants tries each right with a statement that matches no row: a database looks at
// rights before it looks at rows, and knows them better than any catalogue.
func (c checker) grants(ctx context.Context) Finding {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var missing, errs []string
	tables := c.tables()
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		column, err := c.firstColumn(ctx, table)
		if err != nil {
			missing, errs = append(missing, "SELECT on "+table), append(errs, err.Error())
			continue
		}
		for _, verb := range tables[table][1:] {
			statement := map[string]string{
				"INSERT": fmt.Sprintf("INSERT INTO %s SELECT * FROM %s WHERE 1 = 0", table, table),
				"UPDATE": fmt.Sprintf("UPDATE %s SET %s = %s WHERE 1 = 0", table, column, column),
				"DELETE": fmt.Sprintf("DELETE FROM %s WHERE 1 = 0", table),
			}[verb]
			if err := c.db.WithContext(ctx).Exec(statement).Error; err != nil {
				missing, errs = append(missing, verb+" on "+table), append(errs, err.Error())
			}
		}
	}
	if len(missing) == 0 {
		return good("grants", "the user may read and write the %d tables", len(tables))
	}
	return Bad("grants", strings.Join(missing, ", ")+" refused: "+errs[0], "grant the user who works what is missing")
}

func (c checker) firstColumn(ctx context.Context, table string) (name string, err error) {
	rows, err := c.db.WithContext(ctx).Raw("SELECT * FROM " + table + " WHERE 1 = 0").Rows()
	if err != nil {
		return "", err
	}
	defer func() {
		if end := rows.Close(); err == nil {
			err = end
		}
	}()
	names, err := rows.Columns()
	if err != nil {
		return "", err
	}
	return names[0], rows.Err()
}
