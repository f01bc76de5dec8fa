// Package outbox sends messages that are written in the transaction of what they tell
// of, and only if that commits.
//
//	err := guard.Do(ctx, run, func(tx *gorm.DB) error {
//		if err := tx.Create(&order).Error; err != nil {
//			return err
//		}
//		return outbox.Add(tx, outbox.Message{ID: run.EffectKey("placed"), Topic: "orders", Key: order.ID, Payload: body})
//	})
//
// A [Relay] reads the rows and gives them to a [Publisher], such as those of packages
// redisstream and httppost.
//
// # Guaranteed
//
//   - A message is sent if and only if the transaction that added it was committed; at
//     least once, since a relay can die between the broker's answer and the mark.
//   - The same ID is added once, whoever adds it, until the row is deleted: at least for
//     the retention after it was sent. The first one counts.
//   - A row is marked as sent after the broker has said that it has the message.
//   - No message is passed over, however late its transaction commits: rows are found
//     by their state, not by a mark of what was seen. The relay waits for no
//     transaction that is open.
//   - Messages of one topic and key are sent in the order in which their transactions
//     added them, if these followed each other, as they do where each locks a row of
//     what the key names. The first deliveries, that is: a repeat can come later.
//   - One relay of a table works at a time, by a lease; the others stand by, and one of
//     them goes on when the lease of one that died has ended.
//
// # Not guaranteed
//
//   - That a message is delivered once. Its ID is the same each time: package inbox
//     lets a consumer act once.
//   - An order between transactions that overlap, between keys, without a key, or past
//     a message that was parked: the later ones of its key go on.
//   - An order where several servers give out numbers, as in a Galera cluster that is
//     written through more than one node.
//   - That a relay frozen past its lease sends nothing when it wakes: one request may be
//     under way. It is a repeat.
package outbox
