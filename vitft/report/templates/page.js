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
