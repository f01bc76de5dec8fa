package cronspec

import (
	"strconv"
	"strings"
)

// field is one column of an expression.
type field struct {
	name     string
	min, max int
	names    []string // the value of names[i] is min+i
}

var fields = [6]field{
	{name: "second", max: 59},
	{name: "minute", max: 59},
	{name: "hour", max: 23},
	{name: "day of month", min: 1, max: 31},
	{name: "month", min: 1, max: 12, names: []string{
		"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
	}},
	{name: "day of week", max: 6, names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

const dayOfWeek = "day of week"

// normalized is a field's text after checking.
type normalized struct {
	canonical string // what String shows
	listed    string // the same without what robfig's parser does not know: wrapping ranges, 7 for Sunday
	wild      bool   // has *, ? or a step
}

// normalize checks a field. It is stricter than robfig's parser, which takes
// "*-5" for "*", "," for no value at all, and any step.
func (f *field) normalize(text string) (normalized, error) {
	var canonical, listed []string
	for element := range strings.SplitSeq(text, ",") {
		c, l, err := f.element(text, element)
		if err != nil {
			return normalized{}, err
		}
		canonical, listed = append(canonical, c), append(listed, l)
	}
	return normalized{
		canonical: strings.Join(canonical, ","),
		listed:    strings.Join(listed, ","),
		wild:      strings.ContainsAny(text, "*?/"),
	}, nil
}

func (f *field) element(text, element string) (canonical, listed string, err error) {
	if element == "" {
		return "", "", refuse(f.name, text, "remove the extra comma", "has an empty list entry")
	}
	base, stepText, stepped := strings.Cut(element, "/")
	low, high, isRange := f.min, f.max, true
	if base == "*" || base == "?" {
		base = "*"
	} else {
		var lowText, highText string
		lowText, highText, isRange = strings.Cut(base, "-")
		if low, err = f.value(text, lowText); err != nil {
			return "", "", err
		}
		high = low
		if isRange {
			if high, err = f.value(text, highText); err != nil {
				return "", "", err
			}
		}
		base, low, high = f.base(low, high, isRange)
	}
	step := 1
	if stepped {
		if !isRange {
			high = f.max // "5/20" is "5-max/20"
		}
		if step, err = f.step(text, stepText, f.size(low, high)); err != nil {
			return "", "", err
		}
	}
	canonical = base
	if stepped && (step > 1 || base != "*") {
		canonical += "/" + strconv.Itoa(step)
	}
	if low <= high && !strings.HasSuffix(base, "-7") {
		return canonical, canonical, nil
	}
	var values []string
	for i := 0; i < f.size(low, high); i += step {
		v := low + i
		if v > f.max {
			v -= f.max - f.min + 1
		}
		values = append(values, strconv.Itoa(v))
	}
	return canonical, strings.Join(values, ","), nil
}

// base brings a value or range into canonical form, with Sunday as 0 except at
// the end of a range, where 7 reads better.
func (f *field) base(low, high int, isRange bool) (text string, lo, hi int) {
	if f.name == dayOfWeek {
		if low == 0 && high == 7 {
			high = 6
		}
		low, high = low%7, high%7
	}
	if !isRange {
		return strconv.Itoa(low), low, high
	}
	end := high
	if f.name == dayOfWeek && high == 0 && low > 0 {
		end = 7
	}
	return strconv.Itoa(low) + "-" + strconv.Itoa(end), low, high
}

// size is the number of values from low to high, around the end if high is lower.
func (f *field) size(low, high int) int {
	if low <= high {
		return high - low + 1
	}
	return f.max - low + 1 + high - f.min + 1
}

func (f *field) value(text, value string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(value, name) {
			return f.min + i, nil
		}
	}
	n, ok := number(value)
	if !ok {
		supported := "supported are numbers"
		if f.names != nil {
			supported += ", names (" + f.names[0] + " to " + f.names[len(f.names)-1] + ")"
		}
		return 0, refuse(f.name, text, supported+", lists (a,b), ranges (a-b), * and ?, steps (/n)", "%q is not understood", value)
	}
	last := f.max
	if f.name == dayOfWeek {
		last = 7
	}
	if n < f.min || n > last {
		return 0, refuse(f.name, text, "use "+strconv.Itoa(f.min)+" to "+strconv.Itoa(last), "%s is out of range", value)
	}
	return n, nil
}

func (f *field) step(text, stepText string, size int) (int, error) {
	step, ok := number(stepText)
	switch {
	case !ok:
		return 0, refuse(f.name, text, "write a whole number after the /", "step %q is not a number", stepText)
	case step == 0:
		return 0, refuse(f.name, text, "use a step of at least 1", "step is 0")
	case step > 1 && step >= size:
		return 0, refuse(f.name, text, "use a step below "+strconv.Itoa(max(size, 2))+" or name the one value",
			"step %s leaves only the first of %d values", stepText, size)
	}
	return step, nil
}

// number reads digits only; strconv alone would take a sign too.
func number(text string) (int, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}
