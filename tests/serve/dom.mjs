// A minimal DOM, as far as the pages of `vitft serve` and `vitft label` use it.

export class Element {
  constructor(tag) {
    Object.assign(this, { tag, tagName: tag.toUpperCase(), own: "", children: [], className: "" });
    Object.assign(this, { dataset: {}, style: {}, events: {}, attributes: {}, value: "" });
    this.classList = { add() {}, remove() {} };
    this.hidden = false;
  }
  get textContent() { return this.own + this.children.map((child) => child.textContent).join(" "); }
  set textContent(text) { this.children = []; this.own = text; }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.own = ""; this.children = nodes; }
  addEventListener(name, react) { this.events[name] = react; }
  setAttribute(name, value) { this.attributes[name] = value; }
  remove() {}
  focus() {}
  blur() {}
  *below() { for (const child of this.children) { yield child; yield* child.below(); } }
  querySelectorAll(tagAndClass) {
    const [tag, name] = tagAndClass.split(".");
    const fits = (each) => each.tag === tag && (!name || each.className === name);
    return [...this.below()].filter(fits);
  }
  querySelector(tagAndClass) { return this.querySelectorAll(tagAndClass)[0] ?? null; }
}

export const elements = {};
export const document = new Element("document");
document.body = new Element("body");
document.createElement = (tag) => new Element(tag);
document.getElementById = (id) => (elements[id] ??= new Element("p"));

export const pause = () => new Promise((wake) => setTimeout(wake, 20));

export async function open(base) {
  const html = await (await fetch(base)).text();
  return { html, script: html.match(/<script>([^]*)<\/script>/)[1] };
}
