
/* ---- a comparison: buttons that choose a chart, and one design lit wherever it is drawn ---- */
for (const root of document.querySelectorAll(".chosen")) {
  const groups = [...root.querySelectorAll(".switch")];
  const show = () => {
    const value = groups.map((g) => g.querySelector("[aria-pressed='true']").dataset.value).join("|");
    for (const part of root.querySelectorAll("[data-choice]")) part.hidden = part.dataset.choice !== value;
  };
  for (const group of groups) {
    for (const button of group.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
        show();
      });
    }
  }
}
const designs = document.querySelectorAll("tr.row, .many .key, .point, .many .curve");
const numberOf = (element) => /(?:^|\s)c(\d+)(?:\s|$)/.exec(element.getAttribute("class"))[1];
function light(number) {
  document.body.classList.toggle("lit", number !== null);
  for (const element of designs) element.classList.toggle("on", numberOf(element) === number);
}
for (const element of designs) {
  element.addEventListener("pointerenter", () => light(numberOf(element)));
  element.addEventListener("pointerleave", () => light(null));
}
