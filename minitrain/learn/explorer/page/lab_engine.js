// Begin Python with minitrain in it, in a browser's worker or in node.

import { loadPyodide } from './pyodide.mjs';

// bytes: gives the content of a file of the lab by its name. place: where its files are. tell: takes what goes on.
// Returns a function of a question, what goes with it as JSON, and what takes each message of the answer as JSON.
export async function begin(bytes, place, tell = () => {}) {
  tell('loading Python (16 MiB, once) ...');
  const archives = JSON.parse(new TextDecoder().decode(await bytes('lab.json')));
  const [python, ...contents] = await Promise.all([loadPyodide({ indexURL: place }), ...archives.map(bytes)]);
  tell('loading minitrain ...');
  for (const content of contents) python.unpackArchive(content, 'wheel');
  return python.pyimport('minitrain.learn.explorer.in_browser').answer;
}
