// How questions of the page reach the explorer's server: each is a request, whose answer comes in lines of JSON.

export const RIGHTS = 'on this machine with your rights';
let token = '';

// Take the token from the address, or from what an earlier page of this server has kept.
export function open(words) {
  token = words.get('token') || '';
  try {
    token ||= localStorage.getItem('token') || '';
    localStorage.setItem('token', token);
  } catch {
    // a page that may keep nothing asks with what stands in its address
  }
}

export async function ask(question, given, take) {
  let response;
  try {
    response = await fetch('ask/' + question, {
      method: 'POST',
      body: JSON.stringify(given),
      headers: { authorization: 'Bearer ' + token, 'content-type': 'application/json' },
    });
  } catch (error) {
    throw new Error(`the server cannot be reached (${error.message}); start \`minitrain explore\` again`);
  }
  if (!response.ok) throw new Error(await response.text());
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const { value, done } = await reader.read();
    rest += value || '';
    const lines = rest.split('\n');
    rest = lines.pop();
    for (const line of lines) take(JSON.parse(line));
    if (done) return;
  }
}
