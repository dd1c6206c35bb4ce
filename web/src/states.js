// Where the states of recurrent layers are. Unlike K and V, what a state was before is gone once it is written: so the
// state before a prompt's last step stays, and a prompt that begins as the one before goes on from there.

/** The slots of a plan: slot 0 is the state of no tokens, and is never written. */
export class StateSlots {
  constructor(count) {
    this.count = count;
    this.kept = [{ length: 0, slot: 0 }]; // rising; the last is the state of the sequence
  }

  /** Goes back to a state of at most so many tokens; says of how many. */
  cut(length) {
    while (this.kept.at(-1).length > length) this.kept.pop();
    return this.kept.at(-1).length;
  }

  /** {read, write} of a step that brings the sequence to a length. One that `keeps` leaves the state before it. */
  step(length, keeps) {
    const read = this.kept.at(-1).slot;
    if (read && !keeps) {
      this.kept.at(-1).length = length;
      return { read, write: read };
    }
    const write = this.free();
    this.kept.push({ length, slot: write });
    return { read, write };
  }

  /** A slot that holds nothing that is needed; the oldest state goes if there is none. */
  free() {
    for (let slot = 1; slot < this.count; slot++) if (!this.kept.some((one) => one.slot === slot)) return slot;
    return this.kept.splice(1, 1)[0].slot;
  }
}
