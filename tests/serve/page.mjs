// Opens the page of a server, chooses files, and prints what it shows.
import { readFile } from "node:fs/promises";

import { document, elements, open, pause } from "./dom.mjs";

const [base, ...paths] = process.argv.slice(2);
const { html, script } = await open(base);
const main = document.getElementById("main");
main.dataset.maxBytes = html.match(/data-max-bytes="(\d+)"/)[1];
main.dataset.explains = html.match(/data-explains="(\w+)"/)[1];
const ask = (path, options) => fetch(new URL(path, base), options);
new Function("document", "fetch", "location", script)(document, ask, { href: base });
const files = document.getElementById("files"), cards = document.getElementById("cards");
files.files = await Promise.all(paths.map(async (path) => new File([await readFile(path)], path)));
files.events.change();
const isDone = () => elements.known?.own
  && cards.children.every((card) => card.querySelector("ol.classes"));
while (!isDone()) await pause();
const notes = cards.children.map(
  (card) => card.querySelectorAll("p.notes").map((note) => note.textContent));
console.log(JSON.stringify({ known: elements.known.textContent, notes }));
process.exit(0);
