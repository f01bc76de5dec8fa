package cronspec

import (
	"math/bits"
	"time"

	"github.com/robfig/cron/v3"
)

const day = 24 * 60 * 60

// calendar is the part of a cron spec that knows nothing of zones. It works on
// walls: what a clock on the wall shows, as seconds since it showed 1970-01-01
// 00:00:00. Each field is a set of bits.
type calendar struct {
	second, minute, hour   uint64
	dayOfMonth, month, dow uint64
	eitherDay              bool // both day fields are restricted: one of them is enough
}

// starBit is how robfig's parser marks a field that is not restricted.
const starBit = 1 << 63

func newCalendar(p *cron.SpecSchedule) calendar {
	return calendar{
		second: p.Second &^ starBit, minute: p.Minute &^ starBit, hour: p.Hour &^ starBit,
		dayOfMonth: p.Dom &^ starBit, month: p.Month &^ starBit, dow: p.Dow &^ starBit,
		eitherDay: (p.Dom|p.Dow)&starBit == 0,
	}
}

// satisfiable reports whether there is a day that matches.
func (c *calendar) satisfiable() bool {
	if c.eitherDay {
		return true
	}
	for n := monthIndex(2000, time.January); n <= monthIndex(2000, time.December); n++ {
		if c.month>>monthOf(n)&1 == 1 && c.dayOfMonth&uint64(monthMask(n)) != 0 {
			return true
		}
	}
	return false
}

// Months are counted through, so that stepping to the next is adding one.
func monthIndex(year int, month time.Month) int { return year*12 + int(month) - 1 }

func monthOf(n int) time.Month { return time.Month(n%12 + 1) }

// monthStart is the number of the month's first day; day 0 is 1970-01-01.
func monthStart(n int) int64 {
	return time.Date(n/12, monthOf(n), 1, 0, 0, 0, 0, time.UTC).Unix() / day
}

// monthMask has bits 1 to the length of the month.
func monthMask(n int) uint32 {
	length := 31
	switch monthOf(n) {
	case time.April, time.June, time.September, time.November:
		length = 30
	case time.February:
		length = 28
		if y := n / 12; y%4 == 0 && (y%100 != 0 || y%400 == 0) {
			length = 29
		}
	}
	return 1<<(length+1) - 2
}

// days returns the matching days of a month as bits 1 to 31, and its first day.
func (c *calendar) days(n int) (set uint32, start int64) {
	if c.month>>monthOf(n)&1 == 0 {
		return 0, 0
	}
	start = monthStart(n)
	weekday := (start%7 + 7 + 4) % 7 // 1970-01-01 was a Thursday
	week := (c.dow>>weekday | c.dow<<(7-weekday)) & 0x7f
	byWeek := week * (1 | 1<<7 | 1<<14 | 1<<21 | 1<<28) << 1
	if c.eitherDay {
		return uint32(byWeek|c.dayOfMonth) & monthMask(n), start
	}
	return uint32(byWeek&c.dayOfMonth) & monthMask(n), start
}

// split returns the day of a wall and the second of that day.
func split(wall int64) (dayNumber, second int64) {
	second = wall % day
	if second < 0 {
		second += day
	}
	return (wall - second) / day, second
}

// locate returns the month of a day and its number in it, from 1.
func locate(dayNumber int64) (month, dayOfMonth int) {
	y, m, d := time.Unix(dayNumber*day, 0).UTC().Date()
	return monthIndex(y, m), d
}

func (c *calendar) matchesDay(dayNumber int64) bool {
	n, d := locate(dayNumber)
	set, _ := c.days(n)
	return set>>d&1 == 1
}

func (c *calendar) matches(wall int64) bool {
	dayNumber, second := split(wall)
	return c.hour>>(second/3600)&1 == 1 && c.minute>>(second/60%60)&1 == 1 && c.second>>(second%60)&1 == 1 &&
		c.matchesDay(dayNumber)
}

// Search ends at these months: one beyond the years 1 to 9999 on either side,
// as a zone moves an instant of those years by a day at most.
var (
	firstMonth = monthIndex(0, time.December)
	lastMonth  = monthIndex(10000, time.January)
)

// next returns the first matching wall that is not before the given one.
func (c *calendar) next(wall int64) (int64, bool) {
	dayNumber, second := split(wall)
	n, d := locate(dayNumber)
	set, start := c.days(n)
	if set>>d&1 == 1 {
		if t, ok := c.timeFrom(second); ok {
			return dayNumber*day + t, true
		}
	}
	set &= ^uint32(0) << d << 1
	for set == 0 {
		if n++; n > lastMonth {
			return 0, false
		}
		set, start = c.days(n)
	}
	return (start+int64(bits.TrailingZeros32(set))-1)*day + c.firstTime(), true
}

// prev returns the last matching wall that is not after the given one.
func (c *calendar) prev(wall int64) (int64, bool) {
	dayNumber, second := split(wall)
	n, d := locate(dayNumber)
	set, start := c.days(n)
	if set>>d&1 == 1 {
		if t, ok := c.timeTo(second); ok {
			return dayNumber*day + t, true
		}
	}
	set &= 1<<d - 1
	for set == 0 {
		if n--; n < firstMonth {
			return 0, false
		}
		set, start = c.days(n)
	}
	return (start+int64(bits.Len32(set))-2)*day + c.lastTime(), true
}

// count returns how many walls of [from, to) match: whole months by the number
// of their matching days, days by the product of the three time fields.
func (c *calendar) count(from, to int64) int64 {
	if from >= to {
		return 0
	}
	fromDay, fromSecond := split(from)
	toDay, toSecond := split(to)
	n := c.daysBetween(fromDay, toDay) * c.timesBefore(day)
	if fromSecond > 0 && c.matchesDay(fromDay) {
		n -= c.timesBefore(fromSecond)
	}
	if toSecond > 0 && c.matchesDay(toDay) {
		n += c.timesBefore(toSecond)
	}
	return n
}

// daysBetween counts the matching days of [from, to).
func (c *calendar) daysBetween(from, to int64) int64 {
	fromMonth, fromDay := locate(from)
	toMonth, toDay := locate(to)
	total := 0
	for n := fromMonth; n <= toMonth; n++ {
		set, _ := c.days(n)
		if n == fromMonth {
			set &= ^uint32(0) << fromDay
		}
		if n == toMonth {
			set &= 1<<toDay - 1
		}
		total += bits.OnesCount32(set)
	}
	return int64(total)
}

func clock(hour, minute, second int) int64 { return int64(hour*3600 + minute*60 + second) }

func lowest(set uint64) int  { return bits.TrailingZeros64(set) }
func highest(set uint64) int { return bits.Len64(set) - 1 }

// from and below cut a set to its members at or above n, and below n.
func from(set uint64, n int) uint64  { return set &^ (1<<n - 1) }
func below(set uint64, n int) uint64 { return set & (1<<n - 1) }

func (c *calendar) firstTime() int64 {
	return clock(lowest(c.hour), lowest(c.minute), lowest(c.second))
}

func (c *calendar) lastTime() int64 {
	return clock(highest(c.hour), highest(c.minute), highest(c.second))
}

// timeFrom returns the first time of day at or after the given second.
func (c *calendar) timeFrom(second int64) (int64, bool) {
	h, m, s := int(second/3600), int(second/60%60), int(second%60)
	if c.hour>>h&1 == 1 {
		if c.minute>>m&1 == 1 {
			if set := from(c.second, s); set != 0 {
				return clock(h, m, lowest(set)), true
			}
		}
		if set := from(c.minute, m+1); set != 0 {
			return clock(h, lowest(set), lowest(c.second)), true
		}
	}
	if set := from(c.hour, h+1); set != 0 {
		return clock(lowest(set), lowest(c.minute), lowest(c.second)), true
	}
	return 0, false
}

// timeTo returns the last time of day at or before the given second.
func (c *calendar) timeTo(second int64) (int64, bool) {
	h, m, s := int(second/3600), int(second/60%60), int(second%60)
	if c.hour>>h&1 == 1 {
		if c.minute>>m&1 == 1 {
			if set := below(c.second, s+1); set != 0 {
				return clock(h, m, highest(set)), true
			}
		}
		if set := below(c.minute, m); set != 0 {
			return clock(h, highest(set), highest(c.second)), true
		}
	}
	if set := below(c.hour, h); set != 0 {
		return clock(highest(set), highest(c.minute), highest(c.second)), true
	}
	return 0, false
}

// timesBefore counts the times of day below the given second, which may be a whole day.
func (c *calendar) timesBefore(second int64) int64 {
	h, m, s := int(second/3600), int(second/60%60), int(second%60)
	size := func(set uint64) int64 { return int64(bits.OnesCount64(set)) }
	perMinute := size(c.second)
	perHour := size(c.minute) * perMinute
	n := size(below(c.hour, h)) * perHour
	if c.hour>>h&1 == 1 {
		n += size(below(c.minute, m)) * perMinute
		if c.minute>>m&1 == 1 {
			n += size(below(c.second, s))
		}
	}
	return n
}
