"use strict";
// All functions work with nodes and text so that no name is ever parsed as markup.
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function showCell(button) {
  const panel = document.getElementById("chosen");
  const cards = all(`main .card[data-cell="${button.dataset.cell}"]`).filter((card) => !panel.contains(card));
  const total = Number(button.textContent);
  document.getElementById("chosen-title").textContent = button.getAttribute("aria-label") + ".";
  document.getElementById("chosen-count").textContent =
    cards.length === total ? "" : `Shown: ${cards.length}.`;
  document.getElementById("chosen-album").replaceChildren(...cards.map((card) => card.cloneNode(true)));
  all("button.cell").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
  panel.hidden = false;
  panel.focus({ preventScroll: true });
  panel.scrollIntoView({ block: "nearest" });
}

function closeCell() {
  document.getElementById("chosen").hidden = true;
  const button = document.querySelector('button.cell[aria-pressed="true"]');
  if (button) {
    button.setAttribute("aria-pressed", "false");
    button.focus();
  }
}

function valueOf(row, column) {
  const cell = row.children[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = Number(text.replaceAll(",", ""));
  return text === "" || Number.isNaN(number) ? text : number;
}

function sortBy(table, column, heading) {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const sign = up ? 1 : -1;
  const rows = all("tbody tr", table);
  rows.sort((one, other) => {
    const [a, b] = [valueOf(one, column), valueOf(other, column)];
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  });
  all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
  refold(table);
}

function makeSortable(table) {
  all("thead th", table).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(table, column, heading));
    heading.append(button);
  });
}

function refold(table) {
  const limit = table.dataset.unfolded ? Infinity : Number(table.dataset.fold || Infinity);
  all("tbody tr", table).forEach((row, number) => { row.hidden = number >= limit; });
}

function makeFolding(table) {
  const rows = all("tbody tr", table).length;
  if (rows <= Number(table.dataset.fold)) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "unfold";
  button.textContent = `Show all ${rows.toLocaleString("en")} classes`;
  button.addEventListener("click", () => {
    table.dataset.unfolded = "yes";
    refold(table);
    button.remove();
  });
  (table.closest(".scroll") || table).after(button);
  refold(table);
}

all("button.cell").forEach((button) => button.addEventListener("click", () => showCell(button)));
document.getElementById("chosen-close")?.addEventListener("click", closeCell);
document.getElementById("chosen")?.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeCell();
});
all("table.sortable").forEach(makeSortable);
all("table[data-fold]").forEach(makeFolding);

// Mark the section on the screen in the contents.
const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
const visibleSections = new Set();
if (links.size && "IntersectionObserver" in window) {
  const sections = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) visibleSections[isIntersecting ? "add" : "delete"](target);
    const first = sections.find((section) => visibleSections.has(section));
    for (const [id, link] of links) {
      if (first && id === first.id) {
        link.setAttribute("aria-current", "true");
        link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - 40;
      } else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-15% 0px -60% 0px" });
  sections.forEach((section) => watcher.observe(section));
}

// A button that copies each command.
function copyText(code) {
  const fallback = () => {
    getSelection().selectAllChildren(code);
    return document.execCommand("copy") ? Promise.resolve() : Promise.reject(new Error("refused"));
  };
  return navigator.clipboard ? navigator.clipboard.writeText(code.textContent).catch(fallback) : fallback();
}
all("pre.command").forEach((block) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", () => {
    copyText(block.querySelector("code")).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Press Ctrl+C"; });
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  });
  block.append(button);
});

// A picture opens enlarged, with its caption, by a click or by Enter; Escape closes it.
const zoom = document.body.appendChild(document.createElement("dialog"));
zoom.className = "zoom";
zoom.addEventListener("click", ({ target }) => { if (target === zoom || target.type === "button") zoom.close(); });
function original(path) {
  const link = document.createElement("a");
  link.href = document.getElementById("main").dataset.root + "/" + path.split("/").map(encodeURIComponent).join("/");
  link.target = "_blank";
  link.textContent = "Open the original file";
  return link;
}
function enlarge(event) {
  const { key, target, type } = event;
  if (!target.matches("main figure img") || (type === "keydown" && key !== "Enter" && key !== " ")) return;
  event.preventDefault();
  const figure = target.closest("figure"), path = figure.querySelector(".path")?.textContent;
  const close = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Close" });
  const pictures = document.createElement("div");
  pictures.append(...all("img", figure).map((one) => Object.assign(new Image(), { src: one.src, alt: one.alt })));
  zoom.replaceChildren(close, pictures, ...figure.querySelector("figcaption").cloneNode(true).childNodes);
  if (path && document.getElementById("main").dataset.root && location.protocol === "file:" && path.isWellFormed?.() !== false) zoom.append(original(path));
  zoom.showModal();
}
all("main figure img").forEach((one) => {
  Object.assign(one, { tabIndex: 0, title: "Enlarge" });
  one.setAttribute("role", "button");
});
["click", "keydown"].forEach((type) => document.addEventListener(type, enlarge));
