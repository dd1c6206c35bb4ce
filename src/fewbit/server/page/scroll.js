// Follows the end of the messages, unless the reader has scrolled up.
import { $ } from "./dom.js";

const NEAR = 60; // pixels from the end

export class Scroll {
  constructor() {
    this.node = $("scroll");
    this.isAtEnd = true;
    this.top = 0;
    this.node.addEventListener("scroll", () => this.onScroll(), { passive: true });
    const observer = new ResizeObserver(() => this.follow());
    for (const node of [this.node, $("log")]) observer.observe(node);
    $("to-end").addEventListener("click", () => this.toEnd());
  }

  get distance() {
    const { scrollTop, scrollHeight, clientHeight } = this.node;
    return scrollHeight - scrollTop - clientHeight;
  }

  /** Text that grows moves the end away: only going up leaves it, and going down to it comes back. */
  onScroll() {
    const { scrollTop } = this.node;
    if (this.distance < 2 || (scrollTop > this.top && this.distance < NEAR)) this.isAtEnd = true;
    else if (scrollTop < this.top) this.isAtEnd = false;
    this.top = scrollTop;
    this.showButton();
  }

  showButton() {
    $("to-end").hidden = this.isAtEnd || this.distance < NEAR;
  }

  follow() {
    if (this.isAtEnd) this.node.scrollTop = this.node.scrollHeight;
    this.top = this.node.scrollTop;
    this.showButton();
  }

  toEnd() {
    this.isAtEnd = true;
    this.follow();
  }
}
