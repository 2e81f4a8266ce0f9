// Opens the labelling page and prints what it shows after each key.
import { document, elements, open, pause } from "../dom.mjs";

const [base, ...keys] = process.argv.slice(2), pending = new Set();
const ask = (path, options) => {
  const reply = fetch(new URL(path, base), options);
  pending.add(reply);
  return reply.finally(() => pending.delete(reply));
};
const settled = async () => {
  for (let calm = 0; calm < 5; calm += pending.size ? -calm : 1) await pause();
};
const { script } = await open(base);
const names = ["document", "fetch", "location", "Image", "innerWidth", "devicePixelRatio"];
const values = [document, ask, { search: new URL(base).search }, class {}, 390, 3];
new Function(...names, script)(...values);
await settled();
const shown = [];
const target = { tagName: "BODY" };
for (const key of keys) {
  if (key.startsWith("+")) {
    document.getElementById("new-name").value = key.slice(1);
    elements.new.events.submit({ preventDefault() {} });
  } else if (key.startsWith("#")) {
    elements.tiles.children[Number(key.slice(1))].children[0].events.click();
  } else {
    document.events.keydown({ key, target, preventDefault() {} });
  }
  await settled();
  shown.push({
    name: elements.name.textContent, problem: elements.problem.own,
    classes: elements.classes.children.map((one) => one.textContent),
    tiles: elements.tiles?.children.map((one) => one.children[0].attributes["aria-pressed"]) ?? [],
    accept: elements.accept.hidden ? "" : elements.accept.textContent,
    status: elements.status?.own ?? "", accuracy: elements.accuracy.textContent,
    progress: elements.progress.textContent,
  });
}
console.log(JSON.stringify(shown));
process.exit(0);
