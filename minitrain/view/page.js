const figure = JSON.parse(document.getElementById('data').textContent), gd = document.getElementById('figure');
const dark = window.matchMedia && matchMedia('(prefers-color-scheme: dark)').matches;
async function draw() {
  const layout = figure.layout;
  layout.font.color = dark ? '#c9d1d9' : '#3d444d';
  layout.modebar = { ...layout.modebar, bgcolor: 'rgba(0,0,0,0)', color: dark ? '#8b949e' : '#8c959f',
    activecolor: dark ? '#fff' : '#24292f' };
  await Plotly.newPlot(gd, figure.data, layout, CONFIG);
  document.body.dataset.ready = 'yes';
}

if (window.Plotly) draw();
else {
  document.getElementById('missing').hidden = false;
  document.body.dataset.ready = 'missing';
}
