package cronspec

import (
	"strings"
	"time"
	"unicode"

	"github.com/robfig/cron/v3"
)

// maxLength bounds an expression, so that a hostile one is cheap to refuse and
// any accepted one fits a database column.
const maxLength = 1024

const fieldsRemedy = "write 5 fields (minute hour day-of-month month day-of-week), 6 with the second in front, " +
	"a shorthand such as @daily, or @every 10m"

// shorthands are spelled out before anything else sees them.
var shorthands = map[string]string{
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
	"@monthly":  "0 0 1 * *",
	"@weekly":   "0 0 * * 0",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@hourly":   "0 * * * *",
}

var fieldParser = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Parse reads an expression; the package comment gives its syntax. The error, if
// any, is an *Error that names the field, its value and the remedy. Refused are
// among others unknown zones, steps that never take effect, intervals below or
// between whole seconds, and specs that no date satisfies.
func Parse(expr string, opts Options) (*Spec, error) {
	text := strings.TrimSpace(expr)
	if text == "" {
		return nil, refuse("spec", expr, fieldsRemedy, "is empty")
	}
	if len(text) > maxLength {
		return nil, refuse("spec", text[:32]+"...", "shorten its lists with ranges and steps",
			"has %d bytes, more than %d", len(text), maxLength)
	}
	s := &Spec{gap: opts.Gap, fold: opts.Fold}
	text, zoneName, err := splitZone(text, opts.Zone)
	if err != nil {
		return nil, err
	}
	if s.zone, err = loadZone(zoneName); err != nil {
		return nil, err
	}
	if err := s.checkPolicies(); err != nil {
		return nil, err
	}
	if length, ok := strings.CutPrefix(text, "@every"); ok {
		if err := s.parseEvery(strings.TrimSpace(length), opts.Offset); err != nil {
			return nil, err
		}
		return s, nil
	}
	if opts.Offset != 0 {
		return nil, refuse("offset", opts.Offset.String(), "leave it out or use @every", "applies to @every only")
	}
	if strings.HasPrefix(text, "@") {
		spelled, ok := shorthands[text]
		if !ok {
			return nil, refuse("spec", text,
				"use @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually or @every with a duration",
				"is not a known shorthand")
		}
		text = spelled
	}
	if err := s.parseFields(text); err != nil {
		return nil, err
	}
	return s, nil
}

// splitZone takes a leading TZ= or CRON_TZ= off the expression. robfig's parser
// must never see one: it panics if nothing follows.
func splitZone(text, option string) (rest, zoneName string, err error) {
	prefixed, ok := strings.CutPrefix(text, "CRON_TZ=")
	if !ok {
		prefixed, ok = strings.CutPrefix(text, "TZ=")
	}
	if !ok {
		if option == "" {
			option = "UTC"
		}
		return text, option, nil
	}
	end := strings.IndexFunc(prefixed, unicode.IsSpace)
	switch {
	case end < 0:
		return "", "", refuse("spec", text, fieldsRemedy+" after the zone", "has a zone but no fields")
	case end == 0:
		return "", "", refuse("spec", text, "write the zone directly after the =, as in CRON_TZ=Europe/Berlin", "has an empty zone")
	case option != "":
		return "", "", refuse("zone", option, "remove one of the two", "is given although the spec begins with zone %s", prefixed[:end])
	}
	return strings.TrimSpace(prefixed[end:]), prefixed[:end], nil
}

func (s *Spec) checkPolicies() error {
	switch s.gap {
	case "":
		s.gap = GapNextValid
	case GapNextValid, GapShift, GapSkip:
	default:
		return refuse("gap", string(s.gap), "use next_valid, shift or skip", "is not a known policy")
	}
	switch s.fold {
	case "":
		s.fold = FoldFirst
	case FoldFirst, FoldLast, FoldBoth:
	default:
		return refuse("fold", string(s.fold), "use first, last or both", "is not a known policy")
	}
	return nil
}

func (s *Spec) parseEvery(text string, offset time.Duration) error {
	const field, remedy = "@every", "write whole seconds, minutes or hours, as in @every 90s, @every 5m or @every 24h"
	every, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return refuse(field, text, remedy, "is not a duration")
	case every <= 0:
		return refuse(field, text, remedy, "is not positive")
	case every%time.Second != 0:
		return refuse(field, text, remedy, "is not in whole seconds")
	case offset < 0 || offset >= every:
		return refuse("offset", offset.String(), "keep it from 0s to below "+text, "is not within one interval")
	case offset%time.Second != 0:
		return refuse("offset", offset.String(), "round it to whole seconds", "is not in whole seconds")
	}
	s.every, s.offset = int64(every/time.Second), int64(offset/time.Second)
	s.expr = "@every " + shortDuration(every)
	return nil
}

// shortDuration is Duration.String without the trailing zero units.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func (s *Spec) parseFields(text string) error {
	texts := strings.Fields(text)
	switch len(texts) {
	case 5:
		texts = append([]string{"0"}, texts...)
	case 6:
	default:
		return refuse("spec", text, fieldsRemedy, "has %d fields", len(texts))
	}
	var canonical, listed [6]string
	var wild [6]bool
	for i := range fields {
		f, err := fields[i].normalize(texts[i])
		if err != nil {
			return err
		}
		canonical[i], listed[i], wild[i] = f.canonical, f.listed, f.wild
	}
	parsed, err := fieldParser.Parse(strings.Join(listed[:], " "))
	if err != nil {
		return refuse("spec", text, fieldsRemedy, "%v", err)
	}
	s.cal = newCalendar(parsed.(*cron.SpecSchedule))
	if !s.cal.satisfiable() {
		return refuse("spec", text, "change the day of month or the month", "never fires: no month it names has such a day")
	}
	s.fixedTime = !wild[0] && !wild[1] && !wild[2]
	s.fixedHour = !wild[2]
	s.expr = strings.TrimPrefix(strings.Join(canonical[:], " "), "0 ")
	return nil
}
